"""Pages of a folder link to each other; other files stay as they are."""

from __future__ import annotations

import re
from pathlib import Path

from stepladder.reporting.html import template, write_page
from stepladder.reporting.links import LINKS, link_pages, save_page

PAGE = """{{% extends "page.html" %}}{{% block title %}}{name} · stepladder {kind}{{% endblock %}}
{{% block content %}}<h1>{result}</h1>{{% endblock %}}"""


def page(kind: str, result: str, name: str = "run") -> str:
    text = PAGE.format(name=name, kind=kind, result=result)
    return template("page.html").environment.from_string(text).render()


def links_of(file: Path) -> list[tuple[str, str, str]]:
    """Return address, name and result of each link."""
    nav = re.search(r'<nav class="pages".*?</nav>', file.read_text(), re.DOTALL)
    assert nav is not None
    return re.findall(r'<a href="([^"]*)">(.*?)</a> <em>(.*?)</em>', nav[0])


def test_each_page_links_to_the_others_with_their_results(tmp_path: Path) -> None:
    names = {"report": "report.html", "check": "checks.html", "diagnose": "diagnosis.html"}
    save_page(tmp_path / "report.html", page("report", "75.0 % <small>± 1.7</small>"))
    assert str(LINKS) in (tmp_path / "report.html").read_text()  # alone: no links
    save_page(tmp_path / "diagnosis.html", page("diagnose", "Good fit"))
    save_page(tmp_path / "checks.html", page("check", "26 of 28"))
    links = {
        "report": ("report.html", "Training", "75.0 % ± 1.7"),
        "check": ("checks.html", "Checks", "26 of 28"),
        "diagnose": ("diagnosis.html", "Diagnosis", "Good fit"),
    }
    for kind, name in names.items():
        found = links_of(tmp_path / name)
        assert found == [link for other, link in links.items() if other != kind]
    (tmp_path / "trials.jsonl").touch()
    save_page(tmp_path / "report.html", page("report", "9× faster"))
    assert links_of(tmp_path / "checks.html")[0] == ("report.html", "Climb", "9× faster")
    (tmp_path / "report.html").unlink()
    (tmp_path / "diagnosis.html").unlink()
    link_pages(tmp_path)
    assert str(LINKS) in (tmp_path / "checks.html").read_text()


def test_pages_with_names_of_the_user_are_linked_by_their_names(tmp_path: Path) -> None:
    write_page(tmp_path / "lr & seed.html", page("compare", "No difference"), option="--out")
    write_page(tmp_path / "b.html", page("compare", "+2 points"), option="--out")
    assert links_of(tmp_path / "b.html") == [
        ("lr%20%26%20seed.html", "Comparison (lr &amp; seed)", "No difference")
    ]


def test_other_files_are_neither_linked_nor_changed(tmp_path: Path) -> None:
    foreign = f"<title>Mine · stepladder notes</title><h1>Mine</h1>{LINKS}"
    older = "<title>run · stepladder check</title><h1>26 of 28</h1>"
    (tmp_path / "mine.html").write_text(foreign)
    (tmp_path / "checks.html").write_text(older)
    (tmp_path / "bytes.html").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.html").mkdir()
    save_page(tmp_path / "report.html", page("report", "75.0 %"))
    assert links_of(tmp_path / "report.html") == [("checks.html", "Checks", "26 of 28")]
    assert (tmp_path / "mine.html").read_text() == foreign
    assert (tmp_path / "checks.html").read_text() == older  # of an earlier version, without links


def test_hostile_headlines_and_names_stay_text(tmp_path: Path) -> None:
    evil = "<<script>script>alert(1)<img src=x onerror=alert(1) "
    save_page(tmp_path / "report.html", page("report", evil))
    save_page(tmp_path / '"><b>.html', page("check", "26 of 28"))
    for file in tmp_path.glob("*.html"):
        nav = re.search(r'<nav class="pages".*?</nav>', file.read_text(), re.DOTALL)
        assert nav is not None
        assert set(re.findall(r"<(\w+)", nav[0])) <= {"nav", "span", "a", "b", "em"}
    assert links_of(tmp_path / "report.html")[0][0] == "%22%3E%3Cb%3E.html"
