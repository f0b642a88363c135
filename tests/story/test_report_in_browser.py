"""Open reports in headless Chromium: no errors, no external requests, rendered at every width."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import stepladder
from stepladder.reporting.pages.report_page import write_report

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium (or chromium-browser)"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@pytest.fixture(scope="module")
def build_run() -> Callable[..., Path]:
    return _builder("run_builder", "build_run")


@pytest.fixture(scope="module")
def build_climb() -> Callable[..., Path]:
    return _builder("climb_builder", "build_climb")


def _builder(file: str, function: str) -> Callable[..., Path]:
    path = Path(__file__).parents[1] / f"unit/reporting/{file}.py"
    spec = importlib.util.spec_from_file_location(file, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    builder: Callable[..., Path] = getattr(module, function)
    return builder


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Chromium once on a page, with an empty profile."""

    def run(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
        assert CHROMIUM is not None
        profile = tmp_path / "profile"
        shutil.rmtree(profile, ignore_errors=True)
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return run


def _console(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_it_opens_without_an_error_or_a_request(
    build_run: Callable[..., Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    page = write_report(build_run(tmp_path / "run"))
    done = browse(page, "--enable-logging=stderr", "--v=0", "--dump-dom")
    assert _console(done) == []
    assert "Test accuracy over 661 pictures." in done.stdout
    assert done.stdout.count('<svg class="chart"') == 6
    assert done.stdout.count("<img ") == 12


def test_the_console_check_sees_what_the_policy_forbids(
    browse: Callable[..., subprocess.CompletedProcess[str]],
    build_run: Callable[..., Path],
    tmp_path: Path,
) -> None:
    page = write_report(build_run(tmp_path / "run"))
    bad = tmp_path / "bad.html"
    injected = '<script>document.title="run"</script><img src="http://example.invalid/x.png">'
    bad.write_text(page.read_text().replace("</main>", injected + "</main>"))
    done = browse(bad, "--enable-logging=stderr", "--v=0", "--dump-dom")
    assert len(_console(done)) == 2  # the script and the picture, both blocked by the page itself
    assert "<title>run</title>" not in done.stdout


def test_hostile_names_stay_text_in_a_real_browser(
    build_run: Callable[..., Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    evil = ("<script>alert(1)</script>", "{{7*7}}", '"><img src=x onerror=alert(1)>')
    done = browse(
        write_report(build_run(tmp_path / "run", classes=evil, warnings=evil)),
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
    )
    assert _console(done) == []
    assert done.stdout.count("<script") == 1  # its own
    assert "{{7*7}}" in done.stdout


@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",)])
def test_it_is_drawn_in_light_and_dark(
    flags: tuple[str, ...],
    build_run: Callable[..., Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    page = write_report(build_run(tmp_path / "run"))
    shot = tmp_path / "shot.png"
    browse(page, "--window-size=1200,2600", f"--screenshot={shot}", *flags)
    pixels = np.asarray(Image.open(shot).convert("L"))
    paper = pixels[5, 5]
    assert (paper < 60) if flags else (paper > 240)
    is_ink = np.abs(pixels.astype(int) - int(paper)) > 40
    assert is_ink.mean() > 0.02
    assert not is_ink[:, -20:].any()  # nothing overflows to the right


def test_a_phone_needs_no_sideways_scrolling(
    build_run: Callable[..., Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    names = [f"{i} a_class_with_a_long_name_and_no_space" for i in range(25)]
    page = write_report(build_run(tmp_path / "run", classes=names, warnings=["x" * 300]))
    assert _width_on_a_phone(page, browse, tmp_path) == "<title>w 360</title>"


def test_a_climb_opens_without_an_error_and_shows_its_ladder(
    build_run: Callable[..., Path],
    build_climb: Callable[..., Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    page = write_report(build_climb(build_run(tmp_path / "run")))
    done = browse(page, "--enable-logging=stderr", "--v=0", "--dump-dom")
    assert _console(done) == []
    assert done.stdout.count('<svg class="strip"') == 8  # original, six rungs, end to end
    assert done.stdout.count('<details class="trial"') == 6
    shot = tmp_path / "shot.png"
    browse(page, "--window-size=1200,900", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("L")).astype(int)
    assert (abs(pixels - pixels[5, 5]) > 40).mean() > 0.01


def test_a_climb_with_its_trials_open_needs_no_sideways_scrolling_on_a_phone(
    build_run: Callable[..., Path],
    build_climb: Callable[..., Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    page = write_report(build_climb(build_run(tmp_path / "run"), num_blocks=16))
    page.write_text(page.read_text().replace("<details", "<details open"))
    assert _width_on_a_phone(page, browse, tmp_path) == "<title>w 360</title>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An audit of two logs, and their comparison."""
    folder = tmp_path_factory.mktemp("logs")
    logs = []
    for name, best in (("a_log_with_a_long_name_and_no_space_at_all", 0.7), ("short", 0.75)):
        shares = (0.5, 0.6, best, best - 0.02, best - 0.03, best - 0.05)
        rows = [f"{e},{e * 20},{2 / e},{1 + 1 / e},{p}" for e, p in enumerate(shares, start=1)]
        logs.append(folder / f"{name}.csv")
        logs[-1].write_text("epoch,elapsed_s,loss,val_loss,val_accuracy\n" + "\n".join(rows))
    made = {"audit": folder / "audit.html", "compare": folder / "compare.html"}
    stepladder.audit(*logs, num_val=100, page=made["audit"])
    stepladder.compare(*logs, num_val=100, out=made["compare"])
    return made


@pytest.mark.parametrize(("name", "num_charts"), [("audit", 4), ("compare", 4)])
def test_the_page_of_logs_opens_without_an_error_and_fits_a_phone(
    name: str,
    num_charts: int,
    pages: dict[str, Path],
    browse: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    done = browse(pages[name], "--enable-logging=stderr", "--v=0", "--dump-dom")
    assert _console(done) == []
    assert done.stdout.count('<svg class="chart"') == num_charts
    assert done.stdout.count('<svg class="interval"') == 2
    assert _width_on_a_phone(pages[name], browse, tmp_path) == "<title>w 360</title>"


def _width_on_a_phone(
    page: Path, browse: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> str:
    frame = folder / "phone.html"
    frame.write_text(
        f'<body style="margin:0"><iframe id="f" src="{page.as_uri()}" style="width:360px;'
        'height:6000px;border:0"></iframe><script>f.onload = () => document.title = '
        "`w ${f.contentDocument.documentElement.scrollWidth}`</script>"
    )
    done = browse(frame, "--allow-file-access-from-files", "--dump-dom")
    return done.stdout[done.stdout.index("<title>") : done.stdout.index("</title>") + 8]
