"""Precision and recall of near-duplicates, on copies of photographs and of drawn pictures.

    python -m bench.data.near_duplicates FOLDER [FOLDER …] [--changed 200] [--same FILE]

FOLDER holds photographs in folders of classes. Half of them are train. Test has the others, and
copies of train that were changed: encoded again (JPEG quality 25 to 70), resized (0.35 to 1.6
times), cropped (up to 5 % at each side), made darker or brighter (0.65 to 1.35 times), or all four.
The real `prepare` lists the near-duplicates. A listed picture is right if it is a changed copy
of the picture of train beside it. Of --changed photographs each is changed in one way; they are a
quarter to two thirds of test.

It is measured on three grounds:

- as they are: all photographs;
- objects on white: only photographs of which 70 % of the border are white, which are those that a
  thumbnail of the whole picture takes for each other;
- on white squares: all photographs at half their size, each in the middle of a white square.

Photographs that are in the data twice would count as wrong. --same names a file with those that a
person has compared, two paths a line, relative to the folders; they are left out of test.

Then the same for drawn pictures (drawn_kinds.py), whose kinds have little variety, such as shapes
on a flat ground. Each is drawn at random, so that none is a copy unless it was changed from one.

Goal: precision of 0.9 or more on each ground, and no wrong pair of drawn pictures.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from bench.data.drawn_kinds import KINDS
from bench.rows import share, write_rows
from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.near_file import read_near
from stepladder.data.prepare.prepare import prepare

SAME = Path(__file__).parent / "same_photographs.txt"
WHITE = 241  # of each channel, from which a pixel of the border is white
LEAST_WHITE = 0.7  # of the border
SIZE = 224
NUM_DRAWN = 800  # of each kind, half of them train
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def encode(image: Image.Image, random: np.random.Generator) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(random.integers(25, 71)))
    return Image.open(file).convert("RGB")


def resize(image: Image.Image, random: np.random.Generator) -> Image.Image:
    factor = float(random.choice([0.35, 0.5, 0.7, 1.6]))
    return image.resize([max(8, round(side * factor)) for side in image.size])


def crop(image: Image.Image, random: np.random.Generator) -> Image.Image:
    width, height = image.size
    left, top, right, bottom = random.uniform(0, 0.05, size=4)
    return image.crop((left * width, top * height, (1 - right) * width, (1 - bottom) * height))


def brighten(image: Image.Image, random: np.random.Generator) -> Image.Image:
    darker, brighter = random.uniform(0.65, 0.9), random.uniform(1.1, 1.35)
    return ImageEnhance.Brightness(image).enhance(float(random.choice([darker, brighter])))


def all_four(image: Image.Image, random: np.random.Generator) -> Image.Image:
    for change in (crop, resize, brighten, encode):
        image = change(image, random)
    return image


CHANGES: dict[str, Change] = {
    "encoded again": encode,
    "resized": resize,
    "cropped": crop,
    "brightness": brighten,
    "all four": all_four,
}


def unchanged(image: Image.Image) -> Image.Image:
    return image


def on_white_square(image: Image.Image) -> Image.Image:
    side = 2 * max(image.size)
    square = Image.new("RGB", (side, side), "white")
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def is_on_white(path: Path) -> bool:
    """Return True if most of the border of a photograph is white."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return bool((border.min(axis=1) >= WHITE).mean() >= LEAST_WHITE)


def measure(
    paths: Sequence[Path],
    same: frozenset[Path],
    *,
    ground: Callable[[Image.Image], Image.Image],
    num_changed: int,
    seed: int,
) -> dict[str, Any]:
    """Build train and test, prepare them, and count the listed pairs that are right.

    Args:
        same: photographs of which train may have another copy.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(paths)).tolist()
    half = len(order) // 2
    train = [paths[place] for place in order[:half]]
    test = [paths[place] for place in order[half:] if paths[place] not in same]
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        for idx, path in enumerate(train):
            _save(ground(_open(path)), source / "train", f"{idx}.png", idx)
        for idx, path in enumerate(test[:2]):  # without val, prepare would draw it from train
            _save(ground(_open(path)), source / "val", f"{idx}.png", idx)
        for idx, path in enumerate(test):
            _save(ground(_open(path)), source / "test", f"other-{idx}.png", idx)
        kinds = {}
        for idx, path in enumerate(train[:num_changed]):
            kind = list(CHANGES)[idx % len(CHANGES)]
            image = ground(CHANGES[kind](_open(path), random))
            kinds[_save(image, source / "test", f"changed-{idx}.png", idx)] = kind
        store = Path(name) / "store"
        prepare(PrepareConfig(source=source, out=store, size=SIZE))
        pairs = read_near(store, Split.TEST)
    assert pairs is not None
    right = {
        pair.path: kinds[pair.path]
        for pair in pairs
        if pair.path in kinds and Path(pair.path).stem.removeprefix("changed-") == _stem(pair)
    }
    wrong = []
    for pair in pairs:
        if pair.path not in right:
            kind_of, idx = Path(pair.path).stem.split("-")
            path = (test if kind_of == "other" else train)[int(idx)]
            wrong.append((_name(path), _name(train[int(_stem(pair))])))
    return {
        "num_train": len(train),
        "num_other": len(test),
        "found": Counter(right.values()),
        "changed": Counter(kinds.values()),
        "wrong": wrong,
    }


def _stem(pair: Any) -> str:
    return Path(pair.train_path).stem


def _save(image: Image.Image, split: Path, name: str, idx: int) -> str:
    """Save a picture in one of two classes, and return its path in the source."""
    place = split / ("even", "odd")[idx % 2] / name
    place.parent.mkdir(parents=True, exist_ok=True)
    image.save(place, compress_level=1)
    return str(place.relative_to(split.parent))


def _name(path: Path) -> str:
    return "/".join(path.parts[-3:])


def _open(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def row_of(ground: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return counts as a row of the table."""
    num_right, num_wrong = sum(found["found"].values()), len(found["wrong"])
    by_change = {kind: f"{found['found'][kind]} of {num}" for kind, num in found["changed"].items()}
    return {
        "pictures": ground,
        "train": found["num_train"],
        "others in test": found["num_other"],
        "precision": share(num_right, num_right + num_wrong),
        **by_change,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--changed", type=int, default=200, help="photographs that are changed")
    parser.add_argument("--same", type=Path, default=SAME)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print", action="store_true", help="print wrong pairs, write no results")
    options = parser.parse_args()
    rows, rounds = [], []
    for folder in options.folders:
        paths = sorted(
            path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png")
        )
        listed = options.same.read_text().split() if options.same.exists() else []
        same = frozenset(folder / name for name in listed)
        grounds: dict[str, tuple[list[Path], Callable[[Image.Image], Image.Image]]] = {
            "as they are": (paths, unchanged),
            "objects on white": ([path for path in paths if is_on_white(path)], unchanged),
            "on white squares": (paths, on_white_square),
        }
        for ground, (some, change) in grounds.items():
            if len(some) < 4 * len(CHANGES):
                continue
            num_changed = min(options.changed, len(some) // 2)
            found = measure(some, same, ground=change, num_changed=num_changed, seed=options.seed)
            rows.append(row_of(f"{folder.name}, {ground}", found))
            rounds.append(found)
            print(rows[-1], *found["wrong"], sep="\n", flush=True)
    for kind, draw in KINDS.items():
        random = np.random.default_rng(options.seed)
        with tempfile.TemporaryDirectory() as name:
            drawn = [Path(name) / f"{idx:03}.png" for idx in range(NUM_DRAWN)]
            for path in drawn:
                draw(random).save(path)
            found = measure(
                drawn,
                frozenset(),
                ground=unchanged,
                num_changed=min(options.changed, NUM_DRAWN // 4),
                seed=options.seed,
            )
        rows.append(row_of(f"drawn {kind}", found))
        rounds.append(found)
        print(rows[-1], *found["wrong"], sep="\n", flush=True)
    if not options.print:
        note = (
            "Near-duplicates that `prepare` lists in test, where test has changed copies of "
            "pictures of train, and others. In brackets: Clopper-Pearson 95 % interval."
        )
        write_rows("near_duplicates", rows, note=note, rounds=rounds)


if __name__ == "__main__":
    main()
