"""Third-party Parquet files become the same store as files of the same pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepladder.config.choices import Encoding, Fit, JpegSize, SourceFormat
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.sources.containers.batch_pictures import npy_bytes
from stepladder.data.store.publish import publish_as_delta
from stepladder.errors import DataError, UsageError

SIZE = 24
KINDS = ("apple", "bread")


def test_pixels_and_labels_are_those_of_the_same_files_in_folders(shop: Any) -> None:
    data = [shop.photo(seed) for seed in range(30)]
    labels = [KINDS[seed % 2] for seed in range(30)]
    for seed, label in enumerate(labels):
        path = shop.folder / "photos" / label / f"{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[seed])
    names = [f"{label}/{seed}.jpg" for seed, label in enumerate(labels)]
    columns = {"image": data, "label": labels, "path": names}
    source = shop.table("in/all.parquet", columns, row_group_size=7)
    ours = shop.make(source, "from_table").folder
    theirs = shop.make(shop.folder / "photos", "from_folder").folder
    mine, wanted = shop.contents(ours), shop.contents(theirs)
    assert wanted.pop("prepare_hashes.jsonl")  # only for single files
    assert mine == wanted


def test_rows_without_a_path_are_named_by_file_and_row(shop: Any) -> None:
    for part in range(2):
        columns = {
            "content": [shop.photo(100 * part + row) for row in range(12)],
            "label": [KINDS[row % 2] for row in range(12)],
        }
        shop.table(f"in/part-{part}.parquet", columns, row_group_size=5)
    found = shop.labels(shop.make(shop.folder / "in").folder)
    assert found == {
        f"part-{part}.parquet#{row}": KINDS[row % 2] for part in range(2) for row in range(12)
    }


def test_paths_that_are_absolute_or_repeat_are_replaced_and_reported(shop: Any) -> None:
    paths = [f"a/{row}.jpg" for row in range(20)]
    paths[3], paths[4], paths[5] = "/etc/passwd", "../up.jpg", "a/0.jpg"
    columns = {
        "image": [shop.photo(row) for row in range(20)],
        "label": [KINDS[row % 2] for row in range(20)],
        "path": paths,
    }
    result = shop.make(shop.table("t.parquet", columns))
    wanted = {*paths} - {paths[3], paths[4]} | {f"t.parquet#{row}" for row in (3, 4, 5)}
    assert set(shop.labels(result.folder)) == wanted
    assert any("renamed 3 pictures" in warning for warning in result.warnings)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.dictionary(pa.int8(), pa.int32())])
def test_whole_numbers_become_classes_in_the_order_of_numbers(shop: Any, kind: Any) -> None:
    numbers = [row % 11 for row in range(60)]
    columns = {"image": [shop.photo(row) for row in range(60)], "label": pa.array(numbers)}
    columns["label"] = columns["label"].cast(kind if not pa.types.is_dictionary(kind) else "int32")
    if pa.types.is_dictionary(kind):
        columns["label"] = columns["label"].dictionary_encode()
    result = shop.make(shop.table("t.parquet", columns))
    assert result.manifest.classes == tuple(f"{number:02d}" for number in range(11))
    for path, label in shop.labels(result.folder).items():
        assert int(label) == numbers[int(path.partition("#")[2])]


def pixel_columns(shop: Any, form: str) -> tuple[Any, dict[str, Any]]:
    """Return the column of twenty pictures, and what is needed to read it."""
    arrays = [shop.draw(seed) for seed in range(20)]
    if form == "nested":
        kind = pa.list_(pa.list_(pa.list_(pa.uint8())))
        return pa.array([array.tolist() for array in arrays], kind), {}
    flat = [array.tobytes() for array in arrays]
    sides = {"pixel_height": 30, "pixel_width": 36}
    if form == "list":
        return pa.array([list(one) for one in flat], pa.list_(pa.uint8())), sides
    if form == "fixed":
        return pa.array(flat, pa.binary(len(flat[0]))), sides
    if form == "binary":
        return pa.array(flat, pa.binary()), sides
    assert form == "npy"
    return pa.array([npy_bytes(array) for array in arrays]), {}


@pytest.mark.parametrize("form", ["nested", "list", "fixed", "binary", "npy"])
def test_plain_pixels_are_read_as_they_are(shop: Any, form: str) -> None:
    pixels, options = pixel_columns(shop, form)
    columns = {"pixels": pixels, "label": [KINDS[seed % 2] for seed in range(20)]}
    result = shop.make(shop.table("t.parquet", columns), **options)
    found = shop.rows(result.folder)
    assert len(found) == 20
    for path, (_, _, picture) in found.items():
        png = shop.encode(shop.draw(int(path.partition("#")[2])))
        np.testing.assert_array_equal(picture, decode_picture(png, size=SIZE, fit=Fit.PAD))


def test_height_and_width_may_be_columns_and_grey_is_a_colour(shop: Any) -> None:
    sides = [(10 + seed, 40 - seed) for seed in range(20)]
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 255, side, dtype=np.uint8) for side in sides]
    columns = {
        "data": [array.tobytes() for array in arrays],
        "height": [side[0] for side in sides],
        "width": [side[1] for side in sides],
        "label": [KINDS[seed % 2] for seed in range(20)],
    }
    for path, (_, _, picture) in shop.rows(
        shop.make(shop.table("t.parquet", columns)).folder
    ).items():
        png = shop.encode(arrays[int(path.partition("#")[2])])
        np.testing.assert_array_equal(picture, decode_picture(png, size=SIZE, fit=Fit.PAD))


def test_pixels_without_sides_are_square_and_that_is_reported(shop: Any) -> None:
    arrays = [shop.draw(seed)[:30, :30] for seed in range(20)]
    flat = pa.array([array.tobytes() for array in arrays], pa.binary(2700))
    columns = {"pixels": flat, "label": [KINDS[seed % 2] for seed in range(20)]}
    result = shop.make(shop.table("t.parquet", columns))
    assert any("square pictures" in warning for warning in result.warnings)
    path, (_, _, picture) = next(iter(shop.rows(result.folder).items()))
    png = shop.encode(arrays[int(path.partition("#")[2])])
    np.testing.assert_array_equal(picture, decode_picture(png, size=SIZE, fit=Fit.PAD))


def test_pixels_are_not_kept_as_original_jpegs(shop: Any) -> None:
    pixels, _ = pixel_columns(shop, "npy")
    columns = {"pixels": pixels, "label": [KINDS[seed % 2] for seed in range(20)]}
    source = shop.table("t.parquet", columns)
    with pytest.raises(UsageError, match="the source contains uncompressed pixels") as caught:
        shop.make(source, encoding=Encoding.JPEG)
    assert "--jpeg-size resized" in str(caught.value)
    assert "--encoding pixels" in str(caught.value)
    resized = shop.make(source, "b", encoding=Encoding.JPEG, jpeg_size=JpegSize.RESIZED)
    assert len(shop.labels(resized.folder)) == 20


def test_images_of_spark_lose_bgr_and_alpha(shop: Any) -> None:
    rgb = [shop.draw(seed) for seed in range(20)]
    alpha = np.random.default_rng(1).integers(0, 256, (30, 36, 1), dtype=np.uint8)
    structs = []
    for seed, array in enumerate(rgb):
        shown = array[..., ::-1] if seed else np.concatenate([array[..., ::-1], alpha], axis=2)
        structs.append(
            {
                "origin": f"file:///data/{seed}.png",
                "height": 30,
                "width": 36,
                "nChannels": shown.shape[2],
                "mode": 8 * (shown.shape[2] - 1),
                "data": shown.tobytes(),
            }
        )
    structs[1] |= {"height": -1, "width": -1, "nChannels": -1, "mode": -1, "data": b""}
    columns = {"image": structs, "label": [KINDS[seed % 2] for seed in range(20)]}
    result = shop.make(shop.table("t.parquet", columns), max_bad=0.1)
    assert (
        't.parquet#1,"is empty, because Spark could not decode'
        in (result.folder / "quarantine.csv").read_text()
    )
    found = shop.rows(result.folder)
    front = np.concatenate([rgb[0], alpha], axis=2)
    for row, png in ((0, shop.encode(front)), (2, shop.encode(rgb[2]))):
        wanted = decode_picture(png, size=SIZE, fit=Fit.PAD).astype(int)
        np.testing.assert_allclose(found[f"t.parquet#{row}"][2].astype(int), wanted, atol=1)


def hugging_face(shop: Any, name: str, rows: range, *, paths: bool = True) -> Path:
    """Write a file as `datasets.Dataset.to_parquet` does."""
    info = {
        "info": {
            "features": {
                "picture": {"_type": "Image"},
                "kind": {"names": ["zebra", "ant"], "_type": "ClassLabel"},
            }
        }
    }
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = [
        {"bytes": shop.photo(row), "path": f"{row:04d}.jpg" if paths else None} for row in rows
    ]
    schema = pa.schema(
        {"picture": struct, "kind": pa.int64()}, metadata={"huggingface": json.dumps(info)}
    )
    kinds = [row % 2 for row in rows]
    return shop.table(name, pa.table({"picture": images, "kind": kinds}, schema=schema))


def test_hugging_face_names_classes_paths_and_splits(shop: Any) -> None:
    hugging_face(shop, "hub/data/train-00000-of-00002.parquet", range(12))
    hugging_face(shop, "hub/data/train-00001-of-00002.parquet", range(12, 24))
    hugging_face(shop, "hub/data/validation-00000-of-00001.parquet", range(24, 30))
    hugging_face(shop, "hub/data/test-00000-of-00001.parquet", range(30, 36), paths=False)
    (shop.folder / "hub" / "README.md").write_text("a card")
    result = shop.make(shop.folder / "hub")
    assert result.manifest.classes == ("ant", "zebra")
    found = shop.rows(result.folder)
    for row in range(36):
        name = (
            "data/test-00000-of-00001.parquet#" + str(row - 30) if row >= 30 else f"{row:04d}.jpg"
        )
        split = "train" if row < 24 else "val" if row < 30 else "test"
        assert found[name][:2] == (split, ("zebra", "ant")[row % 2])


def test_files_of_which_some_name_a_split_are_refused(shop: Any) -> None:
    for name in ("train-0", "test-0", "extra"):
        hugging_face(shop, f"hub/{name}.parquet", range(6))
    with pytest.raises(DataError, match=r"these names do not: extra\.parquet"):
        shop.make(shop.folder / "hub")
    picked = shop.make(f"{shop.folder}/hub/{{train,test}}-0.parquet")
    assert set(picked.manifest.class_counts) == {"train", "val", "test"}


def test_a_split_may_be_anywhere_in_the_name_of_a_table(shop: Any) -> None:
    for start, split in enumerate(("train", "test")):
        hugging_face(
            shop, f"hub/shop_{split}-00000-of-00001.parquet", range(6 * start, 6 * start + 6)
        )
    found = shop.rows(shop.make(shop.folder / "hub", val_frac=0.3).folder).values()
    assert [split for split, *_ in found].count("test") == 6


def test_columns_of_folder_names_are_columns(shop: Any) -> None:
    for kind in KINDS:
        for split in ("train", "val"):
            data = [
                shop.photo(10 * (2 * (kind == "apple") + (split == "val")) + row)
                for row in range(4)
            ]
            shop.table(f"t/label={kind}/split={split}/0.parquet", {"image": data})
    found = shop.rows(shop.make(shop.folder / "t").folder)
    assert len(found) == 16
    for path, (split, label, _) in found.items():
        assert path.startswith(f"label={label}/split={split}/")


def petastorm(shop: Any) -> Path:
    """Write a folder as Petastorm's `materialize_dataset` does: three codecs, a pickled schema."""
    marker = shop.folder / "the pickle ran"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (marker,)

    import pickle

    def coded(seed: int) -> bytes:
        file = io.BytesIO()
        if seed % 3 == 0:
            return bytes(shop.encode(shop.draw(seed)))
        if seed % 3 == 1:
            np.save(file, shop.draw(seed))
        else:
            np.savez_compressed(file, arr=shop.draw(seed))
        return file.getvalue()

    columns = {
        "image": [coded(seed) for seed in range(24)],
        "label": [KINDS[seed % 2] for seed in range(24)],
    }
    path = shop.table("peta/part-00000.parquet", columns)
    key = {"dataset-toolkit.unischema.v1": pickle.dumps(Attack())}
    pa.parquet.write_metadata(
        pa.table(columns).schema.with_metadata(key), path.parent / "_common_metadata"
    )
    assert not marker.exists()
    return path.parent


@pytest.mark.parametrize("kind", [SourceFormat.AUTO, SourceFormat.PETASTORM])
def test_petastorm_is_read_and_its_pickle_is_not(shop: Any, kind: SourceFormat) -> None:
    folder = petastorm(shop)
    result = shop.make(folder, source_format=kind)
    found = shop.rows(result.folder)
    assert len(found) == 24
    for path, (_, _, picture) in found.items():
        png = shop.encode(shop.draw(int(path.partition("#")[2])))
        np.testing.assert_array_equal(picture, decode_picture(png, size=SIZE, fit=Fit.PAD))
    assert not (shop.folder / "the pickle ran").exists()


def test_what_is_not_petastorm_is_not_taken_for_it(shop: Any) -> None:
    shop.table("t/0.parquet", {"image": [shop.photo(0)], "label": ["a"]})
    with pytest.raises(UsageError, match="not a Petastorm dataset: there is no Unischema"):
        shop.make(shop.folder / "t", source_format=SourceFormat.PETASTORM)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1], "label": ["a"]}, "no column that is known to contain pictures"),
        ({"image": [b"x"], "kind_of": ["a"]}, "--label-column"),
        (
            {"first": [b"x"], "second": [b"x"], "label": ["a"]},
            "several columns may contain the pictures",
        ),
        ({"image": [b"x"], "label": [0.5]}, "a label must be an integer or a string"),
        ({"image": [b"x"], "label": [[1]]}, "a label must be an integer or a string"),
    ],
)
def test_ambiguous_columns_are_listed(shop: Any, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        shop.make(shop.table("t.parquet", columns))
    assert "column" in str(caught.value.fix)
    assert not (shop.folder / "store.partial").exists()


@pytest.mark.parametrize("words", [("train", "valid"), ("Training", "dev"), ("a", "b")])
def test_a_column_of_another_name_contains_the_splits(shop: Any, words: tuple[str, str]) -> None:
    columns = {
        "image": [shop.photo(row) for row in range(20)],
        "label": [KINDS[row % 2] for row in range(20)],
        "path": [f"{row}.jpg" for row in range(20)],
        "subset": [words[row >= 14] for row in range(20)],
    }
    prepared = shop.make(shop.table("t.parquet", columns, row_group_size=9), val_frac=0.5)
    found = [shop.rows(prepared.folder)[f"{row}.jpg"][0] for row in range(20)]
    is_split = words != ("a", "b")
    assert (found == ["train"] * 14 + ["val"] * 6) == is_split
    told = "the splits are those of the column subset (--split-column subset)"
    assert any(told in line for line in prepared.warnings) == is_split


def test_named_columns_win(shop: Any) -> None:
    columns = {
        "image": [b"not this one"] * 20,
        "scan": [shop.photo(row) for row in range(20)],
        "label": [0] * 20,
        "kind": [KINDS[row % 2] for row in range(20)],
        "side": ["train"] * 14 + ["val"] * 6,
        "name": [f"{row}.jpg" for row in range(20)],
        "scene": [row // 4 for row in range(20)],
    }
    source = shop.table("t.parquet", columns)
    names = {"image_column": "scan", "label_column": "kind", "path_column": "name"}
    found = shop.rows(shop.make(source, split_column="side", **names).folder)
    assert {path: facts[:2] for path, facts in found.items()} == {
        f"{row}.jpg": ("train" if row < 14 else "val", KINDS[row % 2]) for row in range(20)
    }
    grouped = shop.rows(
        shop.make(source, "grouped", group_by="scene", val_frac=0.5, **names).folder
    )
    for scene in range(5):
        assert len({grouped[f"{4 * scene + at}.jpg"][0] for at in range(4)}) == 1


def test_a_store_is_not_a_source(shop: Any) -> None:
    columns = {
        "image": [shop.photo(row) for row in range(20)],
        "label": [KINDS[row % 2] for row in range(20)],
    }
    made = shop.make(shop.table("in/all.parquet", columns)).folder
    publish_as_delta(made)
    for kind in (SourceFormat.AUTO, SourceFormat.PARQUET, SourceFormat.DELTA):
        with pytest.raises(UsageError, match="the source is already a store"):
            shop.make(made, "again", source_format=kind)


def test_a_third_party_manifest_makes_no_store(shop: Any) -> None:
    columns = {
        "image": [shop.photo(row) for row in range(20)],
        "label": [KINDS[row % 2] for row in range(20)],
    }
    source = shop.table("in/all.parquet", columns).parent
    (source / "manifest.json").write_text('{"shards": 3}')
    assert len(shop.labels(shop.make(source).folder)) == 20


def test_two_columns_of_one_name_are_reported(shop: Any) -> None:
    image = pa.array([shop.photo(row) for row in range(4)])
    label = pa.array(["a", "b", "a", "b"])
    table = pa.Table.from_arrays([image, label, label], ["image", "label", "label"])
    path = shop.folder / "twins.parquet"
    pq.write_table(table, path)
    with pytest.raises(DataError, match=r"two columns are named 'label'"):
        shop.make(path)


@pytest.mark.parametrize(
    ("image", "label"),
    [
        (pa.large_binary(), pa.large_string()),
        (pa.binary_view(), pa.string_view()),
        (pa.binary(), pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_types_that_are_alike_in_a_file_are_no_drift(
    image: pa.DataType, label: pa.DataType, shop: Any
) -> None:
    for part, kinds in enumerate(((pa.binary(), pa.string()), (image, label))):
        rows = range(10 * part, 10 * part + 10)
        shop.table(
            f"in/{part}.parquet",
            {
                "image": pa.array([shop.photo(row) for row in rows]).cast(kinds[0]),
                "label": pa.array([KINDS[row % 2] for row in rows]).cast(kinds[1]),
            },
        )
    assert len(shop.labels(shop.make(shop.folder / "in").folder)) == 20


def test_an_error_lists_at_most_five_columns(shop: Any) -> None:
    source = shop.table("in/wide.parquet", {f"c{at}": [1.5, 2.5] for at in range(9)})
    with pytest.raises(UsageError) as caught:
        shop.make(source)
    assert "c0 (double), c1 (double), c2 (double), c3 (double), c4 (double) and 4 more" in str(
        caught.value
    )
    assert "c5" not in str(caught.value)


@pytest.mark.parametrize("name", ["Label", "breed", "ClassId", "dog_class", "classe"])
def test_a_column_that_is_named_as_labels_are_is_read_and_reported(shop: Any, name: str) -> None:
    columns = {
        "image": [shop.photo(row) for row in range(20)],
        "patient_id": [str(row) for row in range(20)],
        "width": [24] * 20,
        name: [KINDS[row % 2] for row in range(20)],
    }
    result = shop.make(shop.table("t.parquet", columns))
    assert set(shop.labels(result.folder).values()) == set(KINDS)
    assert any(f"--label-column {name}" in text for text in result.warnings)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("breed", "species"), "several columns may contain the classes: breed, species"),
        (("kind_of", "width"), "the column of labels, 'label', is missing"),
    ],
)
def test_the_label_column_of_a_table_is_asked_for_with_one_that_works(
    shop: Any, names: tuple[str, str], words: str
) -> None:
    columns = {
        "image": [shop.photo(row) for row in range(20)],
        "id": [str(row) for row in range(20)],
        names[1]: [KINDS[row % 2] for row in range(20)],
        names[0]: [KINDS[row % 2] for row in range(20)],
    }
    source = shop.table("t.parquet", columns)
    with pytest.raises(UsageError, match=words) as caught:
        shop.make(source)
    found = str(caught.value.fix).partition("--label-column ")[2]
    assert found in names
    assert set(shop.labels(shop.make(source, label_column=found).folder).values()) == set(KINDS)
