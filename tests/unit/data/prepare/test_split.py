"""The split of a picture depends only on its content or its group."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.config.choices import Split
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.split import assign_splits, check_classes, draw_split
from stepladder.data.sources.listing import Listing, Picture
from stepladder.data.sources.walk import Skipped
from stepladder.errors import DataError, UsageError


def sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def listing_of(pictures: list[Picture], *, has_group_column: bool = False) -> Listing:
    return Listing(Path("/photos"), pictures, Skipped(), (), has_group_column)


def assign(pictures: list[Picture], group_by: str | None = None, **options: bool) -> list[Split]:
    hashes = [sha(picture.path) for picture in pictures]
    listing = listing_of(pictures, **options)
    return assign_splits(listing, hashes, val_frac=0.3, group_by=group_by)


@given(st.binary(min_size=32, max_size=32), st.floats(0.01, 0.49), st.floats(0.5, 0.99))
def test_a_larger_share_takes_nothing_out_of_val(key: bytes, small: float, large: float) -> None:
    if draw_split(key, val_frac=small) is Split.VAL:
        assert draw_split(key, val_frac=large) is Split.VAL


def test_about_the_share_is_drawn() -> None:
    drawn = Counter(draw_split(sha(str(i)), val_frac=0.1) for i in range(10_000))
    assert 900 < drawn[Split.VAL] < 1100
    assert drawn[Split.TEST] == 0


def test_the_draw_is_frozen() -> None:
    drawn = [draw_split(sha(str(i)), val_frac=0.5) for i in range(12)]
    assert "".join(split[0] for split in drawn) == "vttvtttvttvv"


def test_adding_files_moves_no_old_one() -> None:
    some = [Picture(f"a/{i}.jpg", "a", None) for i in range(100)]
    more = [Picture(f"a/{i}.jpg", "a", None) for i in range(300)]
    assert assign(some) == assign(more)[:100]


def test_the_sources_own_splits_are_kept() -> None:
    pictures = [
        Picture(f"{i}.jpg", "a", split) for i in range(50) for split in (Split.TRAIN, Split.VAL)
    ]
    assert assign(pictures) == [picture.split for picture in pictures]


def test_val_is_drawn_from_train_and_never_from_test() -> None:
    train = [Picture(f"train/{i}.jpg", "a", Split.TRAIN) for i in range(100)]
    test = [Picture(f"test/{i}.jpg", "a", Split.TEST) for i in range(100)]
    splits = assign(train + test)
    assert set(splits[:100]) == {Split.TRAIN, Split.VAL}
    assert set(splits[100:]) == {Split.TEST}


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=12),
    st.integers(0, 10_000),
    st.sampled_from([0.01, 0.1, 0.3, 0.9]),
)
def test_train_and_val_have_each_class_of_two_pictures(
    sizes: list[int], start: int, val_frac: float
) -> None:
    pictures = [
        Picture(f"{label}/{start + idx}.jpg", str(label), None)
        for label, num in enumerate(sizes)
        for idx in range(num)
    ]
    hashes = [sha(picture.path) for picture in pictures]
    splits = assign_splits(listing_of(pictures), hashes, val_frac=val_frac, group_by=None)
    alone = [draw_split(content, val_frac=val_frac) for content in hashes]
    for label, num in enumerate(sizes):
        some = [
            split for one, split in zip(pictures, splits, strict=True) if one.label == str(label)
        ]
        drawn = [
            split for one, split in zip(pictures, alone, strict=True) if one.label == str(label)
        ]
        assert Split.TRAIN in some
        assert (Split.VAL in some) == (num > 1)
        num_moved = sum(now is not before for now, before in zip(some, drawn, strict=True))
        assert num_moved == (len(set(drawn)) == 1 and not (num == 1 and drawn == [Split.TRAIN]))


def test_the_picture_that_a_larger_share_would_draw_is_moved_to_val() -> None:
    pictures = [Picture(f"{label}/{i}.jpg", label, None) for label in "ab" for i in range(9)]
    hashes = [sha(picture.path) for picture in pictures]
    splits = assign_splits(listing_of(pictures), hashes, val_frac=1e-9, group_by=None)
    for start in (0, 9):
        keys = [content[-8:] for content in hashes[start : start + 9]]
        expected = [Split.VAL if key == min(keys) else Split.TRAIN for key in keys]
        assert splits[start : start + 9] == expected


def test_copies_and_groups_are_moved_as_one() -> None:
    pictures = [Picture(f"{i}.jpg", "ab"[i % 2], None, f"person{i // 4}") for i in range(12)]
    for seed in range(20):
        people = [sha(f"{seed} {i // 4}") for i in range(12)]
        splits = assign_splits(listing_of(pictures), people, val_frac=1e-9, group_by=None)
        assert [splits[at] for at in range(0, 12, 4)].count(Split.VAL) == 1
        assert splits == [splits[at - at % 4] for at in range(12)]
    named = listing_of(pictures, has_group_column=True)
    hashes = [sha(picture.path) for picture in pictures]
    splits = assign_splits(named, hashes, val_frac=1e-9, group_by="person")
    assert splits.count(Split.VAL) == 4
    assert splits == [splits[at - at % 4] for at in range(12)]


def test_a_class_in_one_group_stays_in_train() -> None:
    pictures = [Picture(f"{i}.jpg", "a" if i < 8 else "b", None, f"p{i // 4}") for i in range(12)]
    listing = listing_of(pictures, has_group_column=True)
    hashes = [sha(picture.path) for picture in pictures]
    for val_frac in (1e-9, 0.999999):
        splits = assign_splits(listing, hashes, val_frac=val_frac, group_by="p")
        assert splits[8:] == [Split.TRAIN] * 4
        assert sorted(splits[:8:4]) == [Split.TRAIN, Split.VAL]


def test_a_bad_picture_is_not_the_one_of_val() -> None:
    pictures = [Picture(f"{label}/{i}.jpg", label, None) for label in "ab" for i in range(4)]
    hashes = [b"" if i % 4 < 2 else sha(str(i)) for i in range(8)]
    splits = assign_splits(listing_of(pictures), hashes, val_frac=1e-9, group_by=None)
    for start in (2, 6):
        assert sorted(splits[start : start + 2]) == [Split.TRAIN, Split.VAL]


@pytest.mark.parametrize("group_by", ["folder", r"scene\d+", r"(scene)(\d+)"])
def test_a_group_stays_on_one_side(group_by: str) -> None:
    pictures = [
        Picture(f"a/scene{scene}/{i}.jpg", "a", None) for scene in range(40) for i in range(5)
    ]
    splits = assign(pictures, group_by)
    by_scene = [set(splits[at : at + 5]) for at in range(0, 200, 5)]
    assert all(len(sides) == 1 for sides in by_scene)
    assert {Split.TRAIN} in by_scene
    assert {Split.VAL} in by_scene


def test_a_column_groups_whatever_the_path_says() -> None:
    pictures = [Picture(f"{i}.jpg", "a", None, f"person{i % 20}") for i in range(100)]
    splits = assign(pictures, "person", has_group_column=True)
    for person in range(20):
        assert len(set(splits[person::20])) == 1
    assert len(set(splits)) == 2


def test_grouping_by_folder_needs_folders_in_the_classes() -> None:
    with pytest.raises(UsageError, match="directly in its class folder") as caught:
        assign([Picture("a/1.jpg", "a", None)], "folder")
    assert "--group-by" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "not a valid regular"), ("scen", "does not match the path of any picture")],
)
def test_a_pattern_that_groups_nothing_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        assign([Picture("a/1.jpg", "a", None)], pattern)


def test_a_class_that_train_lacks_is_an_error_with_its_name() -> None:
    counts = {Split.TRAIN: Counter(a=5), Split.VAL: Counter(a=1), Split.TEST: Counter(a=1, b=2)}
    with pytest.raises(
        DataError, match=r"1 of the classes in test has no pictures in train: b \(2 in test\)"
    ):
        check_classes(counts)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Tomato not Ripened 1", "Tomato not Ripen 1"),
        ("golden_retriever", "golden-retriever"),
        ("Cat", "cat"),
        ("tiger cat", "tigercat"),
    ],
)
def test_a_class_that_is_spelt_in_two_ways_is_named_in_both(train: str, test: str) -> None:
    counts = {Split.TRAIN: Counter({"a": 5, train: 5}), Split.TEST: Counter({"a": 1, test: 2})}
    with pytest.raises(DataError, match=f"{test} \\(2 in test\\)") as caught:
        check_classes(counts)
    assert caught.value.why == f"{test!r} in test looks like {train!r} in train."
    assert "rename one of the two folders" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("train", "test"), [("class 1", "class 2"), ("apple", "pear"), ("1", "-1")]
)
def test_classes_of_other_numbers_or_words_are_not_one(train: str, test: str) -> None:
    counts = {Split.TRAIN: Counter({"a": 5, train: 5}), Split.TEST: Counter({"a": 1, test: 2})}
    with pytest.raises(DataError, match=f"{test} \\(2 in test\\)") as caught:
        check_classes(counts)
    assert "looks like" not in str(caught.value)


def test_classes_that_held_out_parts_lack_are_named_with_counts() -> None:
    counts = {Split.TRAIN: Counter(a=5, b=7, c=9), Split.VAL: Counter(a=1)}
    (warning,) = check_classes(counts)
    assert "val has no picture of 2 of 3 classes: b (7 in train), c (9 in train)" in warning


def test_a_negative_number_is_another_class() -> None:
    counts = Counter({"-1": 5, "1": 5})
    assert check_classes({Split.TRAIN: counts, Split.VAL: counts}) == []


def test_a_class_without_any_picture_is_an_error_with_a_reason() -> None:
    counts = {Split.TRAIN: Counter(a=5, c=0), Split.VAL: Counter(a=1)}
    bad = [Bad("a/1.jpg", "is empty"), Bad("c/1.jpg", "is truncated")]
    with pytest.raises(
        DataError, match=r"2 of 3 classes have only pictures that cannot be used: b, c"
    ) as caught:
        check_classes(counts, ("a", "b", "c"), bad)
    assert caught.value.why == "'c/1.jpg': is truncated"


def test_an_empty_val_is_an_error() -> None:
    with pytest.raises(DataError, match="no pictures are left for the split val"):
        check_classes({Split.TRAIN: Counter(a=5, b=5)})


@pytest.mark.parametrize(
    ("labels", "are_similar"),
    [
        (("Orange", "orange"), True),
        (("7", "007"), True),
        (("class 1", "class_01"), True),
        (("red  apple", "red apple"), True),
        (("10", "1"), False),
        (("1_1", "11"), False),
        (("orange", "oranges"), False),
        (("0", "00"), True),
    ],
)
def test_classes_with_nearly_the_same_name_are_told(
    labels: tuple[str, str], are_similar: bool
) -> None:
    counts = {Split.TRAIN: Counter({labels[0]: 5, labels[1]: 2, "kiwi": 3})}
    counts[Split.VAL] = Counter(counts[Split.TRAIN])
    warnings = check_classes(counts)
    assert len(warnings) == are_similar
    if are_similar:
        assert f"{labels[1]!r} (2 in train)" in warnings[0]
        assert "kiwi" not in warnings[0]
