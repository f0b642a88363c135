"""Every error that users can see suggests a fix."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import stepladder

PACKAGE = Path(stepladder.__file__).parent
ERRORS = {
    *("StepladderError", "UsageError", "DataError", "ResourceError", "DivergedError"),
    "NoAdvice",  # TrialFailed is the reason of a verdict, and needs no action
}
READERS = {
    *(
        "records/from_json.py",
        "training/checkpoint/checkpoint_files.py",
        "training/checkpoint/checkpoint_folders.py",
    ),
    "training/features/feature_cache.py",
}
"""They say what is wrong with a file, in one line of a list; their callers say what to do."""

FILES = sorted(
    file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).as_posix() not in READERS
)


def errors_in(code: str) -> Iterator[tuple[int, set[str | None]]]:
    """Yield line and keywords of each error that is created; None among them is a `**mapping`."""
    for node in ast.walk(ast.parse(code)):
        is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_named and node.func.id in ERRORS:
            yield node.lineno, {keyword.arg for keyword in node.keywords}


def test_an_error_says_what_to_type() -> None:
    silent = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file in FILES
        for line, words in errors_in(file.read_text(encoding="utf-8"))
        if not words & {"fix", None}
    ]
    assert not silent, "\n".join(silent)


def test_what_is_left_out_is_there() -> None:
    assert [name for name in sorted(READERS) if not (PACKAGE / name).is_file()] == []


def test_an_error_without_it_is_found() -> None:
    code = "raise UsageError('a', where='b')\nraise DataError('a', fix='b')\nboom()\n"
    assert list(errors_in(code)) == [(1, {"where"}), (2, {"fix"})]
