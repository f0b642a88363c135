"""Pictures, container files as users write them, and stores of these."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import PrepareResult, prepare
from stepladder.data.store.store import Store
from stepladder.data.store.verify import verify_store

SIZE = 24


class Workshop:
    """Creates container files and stores in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def draw(self, seed: int) -> np.ndarray:
        """Return pixels (30, 36, 3) that are unique to their seed."""
        coarse = np.random.default_rng(seed).integers(0, 255, size=(5, 6, 3), dtype=np.uint8)
        return np.asarray(Image.fromarray(coarse).resize((36, 30), Image.Resampling.BICUBIC))

    def encode(self, pixels: np.ndarray, kind: str = "PNG") -> bytes:
        """Encode pixels as the bytes of a file."""
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        return file.getvalue()

    def photo(self, seed: int) -> bytes:
        """Return the bytes of a JPEG or, every third time, of a PNG."""
        return self.encode(self.draw(seed), "PNG" if seed % 3 == 2 else "JPEG")

    def table(self, name: str, columns: Any, **options: Any) -> Path:
        """Write a Parquet file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, path, **options)
        return path

    def tar(self, name: str, members: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
        """Write a tar."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path

    def make(self, source: Path | str, out: str = "store", **options: Any) -> PrepareResult:
        """Prepare a store and verify it."""
        settings = {"size": SIZE, "workers": 2, "val_frac": 0.3, **options}
        config = PrepareConfig(source=Path(source), out=self.folder / out, **settings)
        result = prepare(config)
        assert verify_store(result.folder) == []
        return result

    def rows(self, folder: Path) -> dict[str, tuple[str, str, np.ndarray]]:
        """Read a store: path to (split, class name, pixels)."""
        store = Store.open(folder)
        found = {}
        for split in Split:
            part = store.split(split)
            for row in range(0 if part is None else len(part)):
                assert part is not None
                label = store.manifest.classes[part.labels[row]]
                found[part.describe(row)] = (split.value, label, part.picture(row))
        return found

    def labels(self, folder: Path) -> dict[str, str]:
        """Read a store: path to class name."""
        return {path: label for path, (_, label, _) in self.rows(folder).items()}

    def contents(self, folder: Path) -> dict[str, bytes]:
        """Read all files of a store except the log, which has timestamps and paths."""
        paths = (path for path in folder.iterdir() if path.name != "prepare_log.json")
        return {path.name: path.read_bytes() for path in paths if path.is_file()}


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """Return a workshop."""
    return Workshop(tmp_path)
