"""Sentences use the field's words: phrases that nobody would search for occur nowhere.

python tests/laws/test_words.py [PATH ...]     lists the lines that have one
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("src", "tests", "bench", "docs", "examples", "README.md", "CHANGELOG.md")
KINDS = (".py", ".md", ".html", ".css", ".js", ".yaml", ".yml", ".sh")
# A phrase, and what to write instead
PHRASES: dict[str, str] = {
    r"\b(is|are|was|were|be|been|being) told\b": "is reported, is printed",
    r"\btells? (a|apart|from|how|if|it|its|of|that|the|them|us|what|where|which|who|why)\b": (
        "reports, prints, warns, raises, distinguishes"
    ),
    r"\b(say|says|tell|tells) whether\b": "return True if",
    r'^\s*r?"""(Give|Say|Tell)\b': "Return, Report",
    r"\b(is|are|that is|which is) none\b": "is not a …, there is none",
    r"\banew\b": "again, from scratch",
    r"\b(goes|go|going|gone|went) on\b": "resumes, continues, happens",
    r"\bas (it is )?written\b": "original",
    r"\bas (it lies|they lie|they come|it comes)\b": "in file order, unshuffled",
    r"\b(looks?|looked|looking) (on )?at\b": "checks, inspects, evaluates",
    r"\bknows? nothing of\b": "unmodified",
    r"\bis odd about\b": "the findings",
    r"\b(of others|somebody else)\b": "third-party, external",
    r"\b(stands|stand) (in|for|by|on|at|there|beside|under|alone)\b": "is",
    r"\bholds? still\b": "is stable",
    r"\bfirst look\b": "first timing, first test",
    r"\bof one training each\b": "from a single training run",
}
PROGRAMS = ("bench/faults/", "bench/sound/", "bench/results/")  # written by others, or generated


def phrases_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, phrase, what to write instead) for each that a text has."""
    for number, line in enumerate(text.splitlines(), start=1):
        for phrase, instead in PHRASES.items():
            if found := re.search(phrase, line):
                yield number, found.group().strip(), instead


def files_in(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    own = Path(__file__).resolve()
    files = (path for path in place.rglob("*") if path.suffix in KINDS and path.is_file())
    return sorted(
        path
        for path in files
        if path.resolve() != own and not str(path.relative_to(ROOT)).startswith(PROGRAMS)
    )


@pytest.mark.parametrize("place", PLACES)
def test_no_phrase_of_a_private_dialect(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {phrase!r}: write {instead}"
        for file in files_in(ROOT / place)
        for line, phrase, instead in phrases_in(file.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert not found, "\n".join(found)


def test_a_phrase_is_found_in_a_line_and_code_is_not() -> None:
    text = "x = 1\n# the user is told of it\nif y is None: pass\n"
    assert [(line, phrase) for line, phrase, _ in phrases_in(text)] == [(2, "is told")]


if __name__ == "__main__":
    for given in [str(Path(arg).resolve()) for arg in sys.argv[1:]] or [
        str(ROOT / place) for place in PLACES
    ]:
        for path in files_in(Path(given)):
            for at, words, better in phrases_in(path.read_text(encoding="utf-8", errors="ignore")):
                print(f"{path}:{at}: {words!r}: {better}")
