"""How a source was read is a note, what may be wrong with it a warning, also of an older store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.cli.main import main


def fill(root: Path, folder: str, num: int = 4) -> None:
    (root / folder).mkdir(parents=True)
    for idx in range(num):
        seed = [*folder.encode(), idx]
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / folder / f"{idx}.png")


def said_of(source: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["prepare", str(source), "--out", str(out), "--size", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith(("note: ", "warning: "))]


@pytest.mark.parametrize(
    ("name", "kind"), [("classes.txt", "note"), ("a.dcm", "warning"), ("labels.csv", "warning")]
)
def test_a_document_beside_classes_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    for split in ("train", "val", "test"):
        for label in ("cats", "dogs"):
            fill(tmp_path / "photos", f"{split}/{label}")
    (tmp_path / "photos" / name).write_text("cats\ndogs\n")
    first = said_of(tmp_path / "photos", tmp_path / "store", capsys)
    again = said_of(tmp_path / "photos", tmp_path / "store", capsys)
    assert first == again
    assert [line.partition(":")[0] for line in first if name in line] == [kind]


def test_the_same_note_of_several_splits_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "export"
    for split in ("train", "valid", "test"):
        fill(root, split)
        rows = [f"{idx}.png,{idx % 2},{1 - idx % 2}" for idx in range(4)]
        (root / split / "_classes.csv").write_text("\n".join(["filename, cat, dog", *rows]))
    said = said_of(root, tmp_path / "store", capsys)
    assert said[0] == f"note: {root}/{{test,train,valid}}: read the labels in _classes.csv"
    assert len(said) == 3
    assert all(line.startswith("note: ") for line in said)
