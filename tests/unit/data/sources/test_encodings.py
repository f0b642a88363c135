"""A table of an older encoding is read if it is sure, else shown in each likely encoding."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in

CLASSES = {
    "gbk": ["\u82f9\u679c", "\u9999\u8549", "\u6a59\u5b50"],  # apple, banana, orange
    "big5": ["\u860b\u679c", "\u9999\u8549", "\u6a58\u5b50"],
    "shift_jis": ["\u308a\u3093\u3054", "\u30d0\u30ca\u30ca", "\u732b"],
    "euc_kr": ["\uace0\uc591\uc774", "\uac15\uc544\uc9c0", "\uc0ac\uacfc"],
    "cp1251": ["\u042f\u0431\u043b\u043e\u043a\u043e", "\u043a\u043e\u0442", "\u043f\u0451\u0441"],
    "koi8_r": ["\u042f\u0431\u043b\u043e\u043a\u043e", "\u043a\u043e\u0442", "\u043f\u0451\u0441"],
    "cp1253": [
        "\u03b3\u03ac\u03c4\u03b1",
        "\u03a3\u03ba\u03cd\u03bb\u03bf\u03c2",
        "\u03bc\u03ae\u03bb\u03bf",
    ],
    "cp1250": ["jab\u0142ko", "\u017c\u00f3\u0142ty", "gruszka"],
    "mac_roman": ["\u00c4pfel", "sch\u00f6n", "b"],
}


def table_of(folder: Path, classes: list[str], encoding: str, name: str = "table 1.csv") -> Path:
    for at in range(len(classes)):
        (folder / f"{at}.jpg").write_bytes(b"x")
    rows = [{"path": f"{at}.jpg", "label": label} for at, label in enumerate(classes)]
    text = "path,label\n" + "".join(f"{row['path']},{row['label']}\n" for row in rows)
    if name.endswith("jsonl"):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


@pytest.mark.parametrize("encoding", CLASSES)
@pytest.mark.parametrize("name", ["table 1.csv", "table.jsonl"])
def test_cells_are_shown_in_each_likely_encoding_with_a_command_that_works(
    tmp_path: Path, encoding: str, name: str
) -> None:
    classes = CLASSES[encoding]
    table = table_of(tmp_path, classes, encoding, name)
    with pytest.raises(DataError, match="not UTF-8 text") as caught:
        list_pictures(PrepareConfig(source=table))
    commands = commands_in(caught.value.fix)
    shown = str(caught.value.why).removeprefix("Some of its cells are ").split("; ")
    assert len(shown) == len(commands)
    read = []
    for sample, command in zip(shown, commands, strict=True):
        edit, _, last = command.partition(" && stepladder prepare ")
        subprocess.run(["bash", "-c", edit], check=True)
        source = tmp_path / f"utf8-{name}"
        assert last.strip("'") == str(source)
        read.append([one.label for one in list_pictures(PrepareConfig(source=source)).pictures])
        odd = [label for label in read[-1] if not label.isascii()]
        assert all(label in sample for label in odd)
    assert classes in read


@pytest.mark.parametrize("encoding", ["gbk", "cp1251", "shift_jis"])
def test_the_right_encoding_of_a_usual_table_comes_first(tmp_path: Path, encoding: str) -> None:
    table = table_of(tmp_path, CLASSES[encoding] + CLASSES[encoding][::-1], encoding)
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=table))
    assert f"'{CLASSES[encoding][0]}'" in str(caught.value.why).partition(" in ")[0]


@pytest.mark.parametrize("data", [b"\xff\x81", "\u00e4".encode() + b"\xe4"])
def test_no_encoding_is_suggested_for_bytes_of_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "labels.csv").write_bytes(b"path,label\n1.jpg," + data + b"\n2.jpg,b\n")
    with pytest.raises(DataError, match="line 2: not UTF-8 text") as caught:
        list_pictures(PrepareConfig(source=tmp_path / "labels.csv"))
    assert "iconv" not in str(caught.value)
