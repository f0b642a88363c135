"""A command in a message has the options that the user gave, so that it can be typed as it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.cli.commands.prepare import read
from stepladder.cli.kept_options import with_kept_options, with_whole_commands
from stepladder.cli.main import main
from stepladder.config.options import JobConfig


def save_photo(path: Path, seed: int) -> None:
    """Save a picture that is unique to its seed."""
    pixels = np.random.default_rng(seed).integers(0, 255, size=(30, 36, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


GIVEN = [
    "photos",
    "--val-frac",
    "0.2",
    "--out=my store",
    "--follow-symlinks",
    "--label-column",
    "x",
]
KEPT = "--val-frac 0.2 '--out=my store' --follow-symlinks"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Type: stepladder prepare a", f"Type: stepladder prepare a {KEPT}"),
        (
            "To read one: stepladder prepare 'a b'. If not: --classes-from top",
            f"To read one: stepladder prepare 'a b' {KEPT}. If not: --classes-from top",
        ),
        ("Read it: stepladder prepare .", f"Read it: stepladder prepare . {KEPT}"),
        (
            "x: unzip a.zip && stepladder prepare a --label-pattern '(x). --out' && rm a",
            f"x: unzip a.zip && stepladder prepare a {KEPT} --label-pattern '(x). --out' && rm a",
        ),
        (
            "Type: stepladder prepare a --val-frac 0.5 --columns path,label. Or: --out b",
            "Type: stepladder prepare a '--out=my store' --follow-symlinks --val-frac 0.5 "
            "--columns path,label. Or: --out b",
        ),
        (
            "A: stepladder prepare a. B: stepladder prepare b --out c",
            f"A: stepladder prepare a {KEPT}. B: stepladder prepare b --val-frac 0.2 "
            "--follow-symlinks --out c",
        ),
        ("an earlier stepladder prepare was killed", "an earlier stepladder prepare was killed"),
        (
            "To resume: repeat your stepladder prepare command with --overwrite",
            "To resume: repeat your stepladder prepare command with --overwrite",
        ),
    ],
)
def test_the_options_are_behind_the_source_of_each_command(text: str, expected: str) -> None:
    assert with_kept_options(text, GIVEN) == expected


def test_a_file_of_options_is_kept() -> None:
    for words in (["run.yaml"], ["photos", "--config", "run.yaml"], ["--config=run.yaml"]):
        assert with_kept_options("Type: stepladder prepare a", words) == (
            "Type: stepladder prepare a --config run.yaml"
        )
    text = "Type: stepladder prepare a --config b.yaml"
    assert with_kept_options(text, ["run.yaml"]) == text


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ([f"photos/{one}/{label}/{one}{label}.png" for one in "3456" for label in "01"], ". If"),
        ([f"photos/{label}.{at}.png" for label in ("cat", "dog") for at in range(4)], "\n"),
        (
            [
                f"photos/{one}/{label}/leaf_{at}_{label}.png"
                for one in ("rgb", "gray")
                for label in "ab"
                for at in "123"
            ],
            ". If",
        ),
    ],
)
def test_a_printed_command_works_with_the_options_of_the_user(
    names: list[str],
    end: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(names):
        save_photo(Path(name), seed)
    Path("run.yaml").write_text("prepare:\n  size: 32\n")
    given = ["photos", "--config", "run.yaml", "--val", "0.4", "--into", "my store", "--quiet"]
    assert main(["prepare", *given]) in {2, 3}
    said = capsys.readouterr().err
    command = re.search(rf": (stepladder prepare .+?)(?:{re.escape(end)})", said)
    assert command is not None, said
    words = shlex.split(command[1])[2:]
    config = read(words)[1].job.prepare
    assert (config.out, config.val_frac, config.size) == (Path("my store"), 0.4, 32)
    assert main(["prepare", *words, "--quiet"]) == 0
    assert Path("my store/manifest.json").is_file()


@pytest.mark.parametrize(
    ("word", "name"),
    [("--val", "val_frac"), ("--into", "out"), ("--output", "out"), ("--output_dir", "out")],
)
def test_names_of_other_tools_set_the_option(word: str, name: str) -> None:
    for words in ([word, "0.25"], [f"{word}=0.25"]):
        config = read(["photos", *words])[1].job.prepare
        assert str(getattr(config, name)) == "0.25"
        assert config.source == Path("photos")
    assert str(getattr(JobConfig().prepare, name)) != "0.25"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "if white is 4095, add --max-sample-value 4095 --overwrite to the command",
            "if white is 4095, type: stepladder prepare 'my photos' --out=store "
            "--max-sample-value 4095 --overwrite",
        ),
        (
            "add --label-pattern '^a b/(.+)/' --overwrite to the command; if not, add --size 9 to "
            "the command",
            "type: stepladder prepare 'my photos' --out=store --label-pattern '^a b/(.+)/' "
            "--overwrite; if not, type: stepladder prepare 'my photos' --out=store --size 9",
        ),
        ("add --out=b to the command", "add --out=b to the command"),
        ("add it to the command", "add it to the command"),
    ],
)
def test_options_to_add_are_written_with_the_whole_command(text: str, expected: str) -> None:
    assert with_whole_commands(text, ["my photos", "--out=store"]) == expected


def test_a_command_has_overwrite_once() -> None:
    text = "add --size 9 --overwrite to the command"
    whole = "type: stepladder prepare a --size 9 --overwrite"
    assert with_whole_commands(text, ["a", "--overwrite"]) == whole


def test_the_command_in_a_warning_works_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for row in range(20):
        grey = np.random.default_rng(row).integers(300, 3600, size=(30, 36)).astype(np.uint16)
        path = tmp_path / "my scans" / "ab"[row % 2] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey).save(path)
    assert main(["prepare", "my scans", "--out", "store", "--size", "32"]) == 0
    said = capsys.readouterr().out
    assert "nearly black" in said
    command = re.search(r"type: stepladder (prepare .*)", said)
    assert command is not None
    assert main(shlex.split(command[1])) == 0
    said = capsys.readouterr().out
    assert "4095 is stored as 255" in said
    assert "nearly black" not in said
