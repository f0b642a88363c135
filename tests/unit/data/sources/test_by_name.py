"""Cells that name pictures deep in folders, or only in part, are refused with a working command."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError

IDS = ["0a1b22", "0a1c23", "1f0e31", "1f0e32", "e40777", "e40778"]


def table_of(folder: Path, rows: Sequence[Sequence[str]], pictures: Sequence[str]) -> Path:
    for name in pictures:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    table = folder / "my labels.csv"
    table.write_text("".join(",".join(row) + "\n" for row in rows))
    return table


def refused(table: Path, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=table, **options))
    return caught.value


def typed_listing(fix: str | None) -> Listing:
    """Run the command of a remedy, and list what its last part reads."""
    edit, _, last = str(fix).partition(": ")[2].rpartition("stepladder prepare ")
    subprocess.run(["bash", "-c", edit.removesuffix(" && ") or ":"], check=True)
    source, *flags = shlex.split(last)
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    return list_pictures(PrepareConfig(source=Path(source), **options))


def labels_of(listing: Listing) -> Mapping[str, str]:
    return {picture.path: picture.label for picture in listing.pictures}


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("train/{0[0]}/{0[1]}/{0[2]}/{0}.jpg", "are the start of its name"),  # Google Landmarks
        ("{0[0]}{0[1]}/{0[2]}/{0[3]}{0[4]}/{0}.PNG", "are the start of its name"),
        ("of 'all'/{0[5]}/deep/er/{0}.jpg", "differ from picture to picture"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"path_column": "id"}])
@pytest.mark.parametrize("header", ["id,landmark", "id,label"])
def test_pictures_in_many_folders_are_found_by_a_command(
    tmp_path: Path, place: str, why: str, options: dict[str, str], header: str
) -> None:
    places = {one: place.format(one) for one in IDS}
    rows = [header.split(","), *([one, "ab"[at % 2]] for at, one in enumerate(IDS))]
    error = refused(table_of(tmp_path, rows, list(places.values())), **options)
    assert f"no picture {IDS[0]!r}" in error.what
    assert f"{places[IDS[0]]} exists; the folders {why}" in error.what
    found = typed_listing(error.fix)
    assert labels_of(found) == {places[one]: "ab"[at % 2] for at, one in enumerate(IDS)}


@pytest.mark.parametrize(
    ("place", "lacks"),
    [
        ("a/b/c/d/{}.jpg", "the folder and the ending are missing"),
        ("pictures/ISIC_{}_downsampled.jpg", "the folder and the start and the ending are missing"),
        ("scan_{}.png", "the start and the ending are missing"),
    ],
)
def test_names_in_one_deep_folder_or_with_more_around_them_are_found(
    tmp_path: Path, place: str, lacks: str
) -> None:
    rows = [["picture", "grade"], *([one, "ab"[at % 2]] for at, one in enumerate(IDS))]
    error = refused(table_of(tmp_path, rows, [place.format(one) for one in IDS]))
    assert f"{place.format(IDS[0])} exists, {lacks}" in error.what
    found = typed_listing(error.fix)
    assert set(labels_of(found)) == {place.format(one) for one in IDS}


@pytest.mark.parametrize("kinds", [("epidural", "any", "subdural"), ("rare", "frequent")])
@pytest.mark.parametrize("options", [{}, {"path_column": "ID"}])
def test_a_label_after_the_name_of_a_picture_is_named_and_one_of_them_is_learnt(
    tmp_path: Path, kinds: Sequence[str], options: dict[str, str]
) -> None:
    """As in RSNA's table of intracranial haemorrhages."""
    chosen = {"any": 2, "frequent": 2, "rare": 5}
    rows = [
        [f"ID_{one}_{kind}", str(int(at % chosen.get(kind, 6) == 0))]
        for at, one in enumerate(IDS)
        for kind in kinds
    ]
    pictures = [f"stage/ID_{one}.png" for one in IDS]
    error = refused(table_of(tmp_path, [["ID", "Label"], *rows], pictures), **options)
    assert f"no picture is named 'ID_{IDS[0]}_{kinds[0]}': {pictures[0]} exists" in error.what
    assert all(repr(f"_{kind}") in error.what for kind in kinds)
    assert "A picture has one label here" in str(error.why)
    found = typed_listing(error.fix)
    assert labels_of(found) == {one: str(int(at % 2 == 0)) for at, one in enumerate(pictures)}


def test_one_ending_after_all_names_is_removed_by_the_command(tmp_path: Path) -> None:
    rows = [["file", "label"], *([f"{one}.jpg:full", "ab"[at % 2]] for at, one in enumerate(IDS))]
    error = refused(table_of(tmp_path, rows, [f"{one}.jpg" for one in IDS]), path_column="file")
    assert "without ':full'" in error.what
    assert Counter(labels_of(typed_listing(error.fix)).values()) == {"a": 3, "b": 3}


def test_a_table_whose_cells_name_nothing_shows_a_cell_and_where_pictures_are(
    tmp_path: Path,
) -> None:
    rows = [["who", "id", "landmark"], *([f"w{one}", f"x{one}", "a"] for one in IDS)]
    table = table_of(tmp_path, rows, ["photos/1.jpg", "photos/2.jpg"])
    error = refused(table)
    assert "no column 'path' among 'who', 'id', 'landmark'" in error.what
    assert f"Nearest is 'id', such as 'x{IDS[0]}'" in error.what
    assert "Pictures here are named such as 'photos/1.jpg'" in error.what
    assert str(error.fix).endswith("--path-column id")
    again = refused(table, path_column="id", label_column="landmark")
    assert f"no picture 'x{IDS[0]}'" in again.what
    assert "Pictures here are named such as 'photos/1.jpg'" in again.what


def test_a_folder_without_pictures_is_named(tmp_path: Path) -> None:
    rows = [["id", "landmark"], *([one, "ab"[at % 2]] for at, one in enumerate(IDS))]
    assert f"There are no pictures in {tmp_path}" in refused(table_of(tmp_path, rows, [])).what


def test_blanks_around_the_name_of_a_column_may_be_typed(tmp_path: Path) -> None:
    rows = [["path", "grade", "risk of oedema "], ["1.jpg", "0", "1"], ["2.jpg", "1", "0"]]
    table = table_of(tmp_path, rows, ["1.jpg", "2.jpg"])
    found = list_pictures(PrepareConfig(source=table, label_column="risk of oedema "))
    assert labels_of(found) == {"1.jpg": "1", "2.jpg": "0"}


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("/data/upload/3/22d66256-{}.jpg", "images/{}.jpg"),
        ("22d66256-IMG-a-{}.jpg", "images/IMG-a-{}.jpg"),
        ("s3://bucket/ab12cd34-{}.jpg", "{}.jpg"),
        ("/data/upload/3/ab12cd34-my_cat_{}.jpg", "images/my cat ({}).jpg"),
        ("/data/local-files/?d=images%2Fmy%20cat%20{}.jpg", "images/my cat {}.jpg"),
        ("s3://bucket/my%20cat%20{}.jpg", "images/my cat {}.jpg"),
        ("https://host/a/x%2F{}.jpg?Expires=17&Signature=9", "images/{}.jpg"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"path_column": "image"}])
def test_names_that_an_annotation_tool_changed_are_read_with_a_line(
    tmp_path: Path, cell: str, place: str, options: dict[str, str]
) -> None:
    rows = [
        ["id", "image", "choice"],
        *([str(at), cell.format(one), "ab"[at % 2]] for at, one in enumerate(IDS)),
    ]
    table = table_of(tmp_path, rows, [place.format(one) for one in IDS])
    found = list_pictures(PrepareConfig(source=table, **options))
    assert labels_of(found) == {place.format(one): "ab"[at % 2] for at, one in enumerate(IDS)}
    note = f"{cell.format(IDS[0])!r} is read as {place.format(IDS[0])}"
    assert note in " ".join(found.warnings)


def test_the_path_of_a_served_file_is_cut_by_the_command(tmp_path: Path) -> None:
    rows = [
        ["image", "choice"],
        *([f"/data/local-files/?d=images/{one}.jpg", "ab"[at % 2]] for at, one in enumerate(IDS)),
    ]
    error = refused(table_of(tmp_path, rows, [f"images/{one}.jpg" for one in IDS]))
    found = typed_listing(error.fix)
    assert labels_of(found) == {f"images/{one}.jpg": "ab"[at % 2] for at, one in enumerate(IDS)}


def test_uploads_of_one_name_are_not_read_as_one_picture(tmp_path: Path) -> None:
    rows = [
        ["image", "choice"],
        *([f"/data/upload/{at}/22d6625{at}-1.jpg", "a"] for at in range(6)),
    ]
    assert "no column 'path'" in refused(table_of(tmp_path, rows, ["1.jpg"])).what


LONG_IDS = [f"10{at}8{at}68848953{at}2071" for at in range(1, 7)]


@pytest.mark.parametrize(
    "shorten",
    [
        lambda one: f"{float(one):.5E}",
        lambda one: f'"{float(one):.5E}"'.replace(".", ","),
        lambda one: f"{float(one):.2e}",
        lambda one: f"{one[:15]}{'0' * (len(one) - 15)}",
    ],
)
@pytest.mark.parametrize("options", [{}, {"path_column": "photo_id"}])
def test_ids_that_a_spreadsheet_rounded_are_to_be_exported_again(
    tmp_path: Path, shorten: Callable[[str], str], options: dict[str, str]
) -> None:
    rows = [
        ["photo_id", "species"],
        *([shorten(one), "ab"[at % 2]] for at, one in enumerate(LONG_IDS)),
    ]
    error = refused(table_of(tmp_path, rows, [f"images/{one}.jpg" for one in LONG_IDS]), **options)
    assert "column 'photo_id' has numbers that a spreadsheet rounded to" in error.what
    assert repr(shorten(LONG_IDS[0]).strip('"')) in error.what
    assert f"images/{LONG_IDS[0]}.jpg" in error.what
    assert "Export the ids again" in str(error.fix)
    assert "--path-format" not in str(error.fix)


@pytest.mark.parametrize("place", ["images/{}.jpg", "scans/{}.PNG"])
@pytest.mark.parametrize("options", [{}, {"path_column": "photo_id"}])
def test_a_point_and_zero_after_numbers_are_dropped_with_a_line(
    tmp_path: Path, place: str, options: dict[str, str]
) -> None:
    rows = [
        ["photo_id", "species"],
        *([f"{one}.0", "ab"[at % 2]] for at, one in enumerate(LONG_IDS)),
    ]
    table = table_of(tmp_path, rows, [place.format(one) for one in LONG_IDS])
    found = list_pictures(PrepareConfig(source=table, **options))
    assert set(labels_of(found)) == {place.format(one) for one in LONG_IDS}
    assert "without '.0' after the numbers" in " ".join(found.warnings)
    again = list_pictures(
        PrepareConfig(
            source=table,
            path_column="photo_id",
            label_column="species",
            path_format=place.replace("{}", "{:01}"),
        )
    )
    assert labels_of(again) == labels_of(found)


def test_rounded_ids_with_a_decimal_comma_are_to_be_exported_again(tmp_path: Path) -> None:
    cells = [f"{float(one):.5E}".replace(".", ",") for one in LONG_IDS]
    rows = [["photo_id", "species"], *([cell, "ab"[at % 2]] for at, cell in enumerate(cells))]
    error = refused(table_of(tmp_path, rows, [f"images/{one}.jpg" for one in LONG_IDS]))
    assert f"{cells[0]} seems to be a number that a spreadsheet rounded" in error.what
    assert "Export the ids again" in str(error.fix)


def test_a_path_format_without_the_point_and_zero_is_corrected_by_the_command(
    tmp_path: Path,
) -> None:
    rows = [["photo_id", "label"], *([f"{one}.0", one[-5]] for one in LONG_IDS)]
    pictures = [f"images/{one}.jpg" for one in LONG_IDS]
    table = table_of(tmp_path, rows, pictures)
    error = refused(table, path_column="photo_id", path_format="images/{}.jpg")
    assert set(labels_of(typed_listing(error.fix))) == set(pictures)
