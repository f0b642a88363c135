"""Pictures that belong together by their names: the value of --group-by is found, and works."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.name_groups import expression_for, groups_of, versions_in
from stepladder.data.prepare.near_file import near_fix
from stepladder.data.prepare.prepare import prepare

FRAMES = [
    f"{k}/v_{k}_g{g:02}_c01_frame_{at:04}.jpg" for k in "ab" for g in range(4) for at in (0, 5)
]
PLAIN = [f"{k}/{k}{g}-{at}.png" for k in "ab" for g in range(4) for at in range(3)]
PATIENTS = [f"{k}/P{g}{k} view {at}x.png" for k in "ab" for g in range(10, 14) for at in range(3)]
SCENES = [f"{k}/scene {g}/{at}.png" for k in "ab" for g in range(4) for at in range(3)]
VERSIONS = [
    f"{k}/{w}leaf {g}.png" for k in "ab" for g in range(5) for w in ("", "flip_", "turn_90_")
]


def neighbours(paths: list[str], num_each: int) -> list[tuple[str, str]]:
    starts = range(0, len(paths), num_each)
    return [(paths[at], paths[at + 1]) for at in starts]


@pytest.mark.parametrize(
    ("paths", "num_each"),
    [(FRAMES, 2), (PLAIN, 3), (PATIENTS, 3), (SCENES, 3), (VERSIONS, 3)],
    ids=["frames", "plain", "patients", "scenes", "versions"],
)
def test_pairs_are_kept_together_by_the_expression(paths: list[str], num_each: int) -> None:
    labels = [path[0] for path in paths]
    found = expression_for(paths, labels, neighbours(paths, num_each))
    assert found is not None
    groups = groups_of(found, paths)
    for at in range(0, len(paths), num_each):
        assert len(set(groups[at : at + num_each])) == 1
    assert len(set(groups)) >= len(paths) // num_each // 2


def test_without_a_pattern_in_the_names_nothing_is_proposed() -> None:
    paths = [f"{k}/{one}.jpg" for k in "ab" for one in ("sun", "sea", "sand", "sky")]
    assert expression_for(paths, [path[0] for path in paths], [(paths[0], paths[2])]) is None
    together = [f"a/img_{at}.jpg" for at in range(9)]
    assert expression_for(together, ["a"] * 9, neighbours(together, 3)) is None


@pytest.mark.parametrize(
    "paths",
    [
        [f"{k}/{start}{at:03}.jpg" for at in range(9) for k, start in (("cat", "cat_"), ("x", ""))],
        [f"a/{start}{at:04}.jpg" for at in range(9) for start in ("IMG_", "")],
        FRAMES,
        ["a/b_leaf.jpg", "a/leaf.jpg", *PLAIN],
    ],
)
def test_names_that_only_look_like_versions(paths: list[str]) -> None:
    assert versions_in(paths) is None


def test_versions_in_val_and_train_are_a_warning_whose_expression_works(tmp_path: Path) -> None:
    """As in the fruits of Kaggle that were flipped and rotated before they were split."""
    source = tmp_path / "fruits"
    for seed, path in enumerate(VERSIONS):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(source / path)
    config = PrepareConfig(source=source, out=tmp_path / "store", size=16, val_frac=0.3)
    (warning,) = (said for said in prepare(config).warnings if "by their names versions" in said)
    added = re.search("add (--group-by .*) --overwrite to the command", warning)
    assert added is not None
    _, pattern = shlex.split(added[1])
    result = prepare(replace(config, group_by=pattern, overwrite=True))
    assert not any("versions" in said for said in result.warnings)


def test_the_remedy_of_near_duplicates_has_the_expression() -> None:
    fix = near_fix("val", can_group=True, listed="x.csv", group_by="([^/]+)[-_ ]frame")
    assert "add --group-by '([^/]+)[-_ ]frame' --overwrite to the command" in fix
    assert "--group-by" not in near_fix("test", can_group=False, listed="x.csv", group_by="x")
