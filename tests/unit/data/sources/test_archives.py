"""Archives in place of class folders are named, and the printed command unpacks them."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError


def pack(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
        return
    with tarfile.open(path, "w:gz" if path.suffix in {".gz", ".tgz"} else "w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))


def listed(source: Path) -> Listing:
    return list_pictures(PrepareConfig(source=source))


def counts(listing: Listing) -> dict[str, int]:
    return dict(Counter(one.label for one in listing.pictures))


def unpacked(message: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Type the command in a message, and list what it reads."""
    monkeypatch.chdir(cwd)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    edit, _, source = message.rpartition(" && stepladder prepare ")
    subprocess.run(["bash", "-c", edit[edit.index(": ", edit.index("npack")) + 2 :]], check=True)
    return listed(Path(shlex.split(source)[0]))


@pytest.mark.parametrize("folder", ["", "{}/"])
@pytest.mark.parametrize("place", ["{}", "train/{}", "{0}/{0}"])
@pytest.mark.parametrize("ending", [".zip", ".ZIP", ".tar.gz", ".tgz", ".tar"])
def test_archives_of_classes_are_unpacked_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, place: str, ending: str
) -> None:
    root = tmp_path / "my data"
    for label in ("cats", "sea gulls"):
        names = [f"{folder.format(label)}{idx}.jpg" for idx in range(3)]
        pack(root / f"{place.format(label)}{ending}", *names)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        listed(root)
    assert f"cats{ending}" in caught.value.what
    assert f"sea gulls{ending}" in caught.value.what
    found = unpacked(str(caught.value.fix), tmp_path, monkeypatch)
    assert counts(found) == {"cats": 3, "sea gulls": 3}


def test_many_archives_are_unpacked_in_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for idx in range(30):
        pack(tmp_path / f"my data/class {idx}.zip", "1.jpg", "2.jpg")
    with pytest.raises(DataError) as caught:
        listed(tmp_path / "my data")
    assert "30 archives" in caught.value.what
    assert len(counts(unpacked(str(caught.value.fix), tmp_path, monkeypatch))) == 30


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_classes_in_archives_beside_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    for label in ("cats", "dogs"):
        pack(tmp_path / f"data/{label}.zip", *(f"{label}/{idx}.jpg" for idx in range(3)))
        with zipfile.ZipFile(tmp_path / f"data/{label}.zip") as archive:
            archive.extractall(tmp_path / "data")
    pack(tmp_path / f"data/birds{ending}", "1.jpg", "2.jpg")
    pack(tmp_path / "data/scripts.zip", "train.py")
    pack(tmp_path / "data/download.zip", "data/cats/1.jpg")
    listing = listed(tmp_path / "data")
    (warning,) = [one for one in listing.warnings if "archive is not read" in one]
    assert f": birds{ending}. " in warning
    assert warning.endswith(" --overwrite")
    found = unpacked(warning.removesuffix(" --overwrite"), tmp_path, monkeypatch)
    assert counts(found) == {"cats": 3, "dogs": 3, "birds": 2}
    assert not [one for one in found.warnings if "archive is" in one]


def test_one_class_folder_beside_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data/cats").mkdir(parents=True)
    (tmp_path / "data/cats/1.jpg").write_bytes(b"x")
    pack(tmp_path / "data/dogs.zip", "dogs/1.jpg")
    with pytest.raises(DataError, match="only the class folder 'cats' is unpacked") as caught:
        listed(tmp_path / "data")
    assert counts(unpacked(str(caught.value.fix), tmp_path, monkeypatch)) == {"cats": 1, "dogs": 1}


def test_other_archives_are_named_with_their_programs(tmp_path: Path) -> None:
    for name in ("cats.7z", "dogs.rar"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match="2 archives") as caught:
        listed(tmp_path)
    fix = str(caught.value.fix)
    assert f"7z x {tmp_path}/cats.7z -o{tmp_path}/cats && unrar x {tmp_path}/dogs.rar" in fix
