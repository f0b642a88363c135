"""Labels within nested JSON, or JSON in cells, are refused with a command that writes them out."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

NUM = 12
CLASSES = ["ok", "dented", "scratched"]
LABELS = [CLASSES[at % 3] for at in range(NUM)]
PICTURES = [f"images/part_{at:03}.jpg" for at in range(NUM)]


def fill(folder: Path) -> None:
    (folder / "images").mkdir()
    for name in PICTURES:
        (folder / name).write_bytes(b"x")


def refused(table: Path, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=table, **options))
    return caught.value


def labels_of(listing: Listing) -> Mapping[str, str]:
    return {picture.path: picture.label for picture in listing.pictures}


def labelbox(at: int) -> dict[str, Any]:
    answer = {"feature_id": f"cl{at:018}", "name": LABELS[at], "value": LABELS[at]}
    question = {"feature_id": f"cq{at:018}", "name": "condition", "radio_answer": answer}
    label = {"label_kind": "Default", "annotations": {"objects": [], "classifications": [question]}}
    row = {"id": f"cr{at:018}", "external_id": f"part_{at:03}.jpg"}
    size = {"height": 90 + at % 2, "width": 150, "mime_type": "image/jpeg"}
    project = {"cp1": {"name": "parts", "labels": [label]}}
    return {"data_row": row, "media_attributes": size, "projects": project}


def two_questions(at: int) -> dict[str, Any]:
    row = labelbox(at)
    questions = row["projects"]["cp1"]["labels"][0]["annotations"]["classifications"]
    questions.append({"name": "is blurred", "radio_answer": {"name": ["yes", "no"][at % 2]}})
    return row


def label_studio(at: int) -> dict[str, Any]:
    result = {"value": {"choices": [LABELS[at]]}, "id": f"x{at}", "from_name": "choice"}
    name = f"22d662{at:02}-part_{at:03}.jpg"
    return {
        "id": at,
        "annotations": [{"id": at, "completed_by": 1 + at % 2, "result": [result]}],
        "file_upload": name,
        "data": {"image": f"/data/upload/3/{name}"},
        "created_at": f"2024-05-14T09:41:{at:02}Z",
        "updated_by": 1 + at % 2,
    }


def v7(at: int) -> dict[str, Any]:
    item = {"name": f"part_{at:03}.jpg", "path": "/", "slots": [{"type": "image", "width": 90}]}
    return {"item": item, "annotations": [{"id": f"{at}-a", "name": LABELS[at], "tag": {}}]}


def scale(at: int) -> dict[str, Any]:
    annotations = {"condition": {"type": "category", "response": [[LABELS[at]]]}}
    address = f"https://bucket/parts/part_{at:03}.jpg?Expires=1"
    return {
        "task_id": f"5e{at:022}",
        "params": {"attachment": address, "attachment_type": "image"},
        "response": {"annotations": annotations},
    }


def without_endings(at: int) -> dict[str, Any]:
    return {
        "row": {"key": f"part_{at:03}", "width": 9},
        "answer": {"grade": [{"name": LABELS[at]}]},
    }


def flat_path(at: int) -> dict[str, Any]:
    return {
        "file_name": PICTURES[at],
        "split": "train",
        "label": {"id": at % 3, "name": LABELS[at]},
    }


@pytest.mark.parametrize(
    "record",
    [labelbox, two_questions, label_studio, v7, scale, without_endings, flat_path],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("name", ["my export.ndjson", "export.json"])
def test_nested_paths_and_labels_are_written_as_rows_by_the_command(
    tmp_path: Path, record: Any, name: str
) -> None:
    fill(tmp_path)
    rows = [record(at) for at in range(NUM)]
    table = tmp_path / name
    is_array = name.endswith(".json")
    text = json.dumps(rows) if is_array else "".join(json.dumps(row) + "\n" for row in rows)
    table.write_text(text)
    error = refused(table)
    assert "labels are within nested values" in error.what
    assert labels_of(typed_listing(commands_in(error.fix)[0])) == dict(
        zip(PICTURES, LABELS, strict=True)
    )
    nested = next(key for key, value in rows[0].items() if isinstance(value, dict))
    assert str(refused(table, path_column=nested).fix).startswith("To learn")


def test_tasks_that_nobody_has_annotated_are_left_out_by_the_command(tmp_path: Path) -> None:
    fill(tmp_path)
    rows = [label_studio(at) for at in range(NUM)]
    rows[2]["annotations"] = []
    table = tmp_path / "export.json"
    table.write_text(json.dumps(rows))
    expected = dict(zip(PICTURES, LABELS, strict=True))
    del expected[PICTURES[2]]
    assert labels_of(typed_listing(commands_in(refused(table).fix)[0])) == expected


def test_nested_values_that_name_no_picture_are_listed(tmp_path: Path) -> None:
    fill(tmp_path)
    table = tmp_path / "export.ndjson"
    rows = [{"row": {"id": f"a{at}"}, "answers": [{"name": LABELS[at]}]} for at in range(NUM)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    error = refused(table)
    assert "Nested values: row.id ('a0'), answers.name ('ok')" in error.what
    assert "COLUMN" not in str(error.fix)
    assert "Write one line for each picture" in str(error.fix)


def test_a_label_after_many_points_is_found(tmp_path: Path) -> None:
    fill(tmp_path)
    table = tmp_path / "export.ndjson"
    points = [{"outline": [[k, k + at] for k in range(300)]} for at in range(8)]
    rows = [
        {"data": {"image": PICTURES[at]}, "regions": points, "answer": {"grade": LABELS[at]}}
        for at in range(NUM)
    ]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = typed_listing(commands_in(refused(table).fix)[0])
    assert labels_of(found) == dict(zip(PICTURES, LABELS, strict=True))


def test_several_boxes_in_a_picture_are_no_labels(tmp_path: Path) -> None:
    fill(tmp_path)
    table = tmp_path / "export.ndjson"
    boxes = [{"label": "ok", "x": 1}, {"label": "dented", "x": 2}]
    rows = [{"file_name": PICTURES[at], "objects": boxes[: 1 + at % 2]} for at in range(NUM)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "'objects' holds lists or objects" in refused(table).what


def via_table(folder: Path, attributes: Sequence[dict[str, Any]], column: str) -> Path:
    fill(folder)
    header = ["filename", "file_size", "file_attributes", "region_count", "region_id"]
    header += ["region_shape_attributes", "region_attributes"]
    rows = []
    for at, one in enumerate(attributes):
        row = dict.fromkeys(header, "{}")
        row |= {"filename": PICTURES[at], "file_size": str(900 + at), "region_count": str(at % 2)}
        row |= {"region_id": "0", column: json.dumps(one, separators=(",", ":"))}
        rows.append(row)
    table = folder / "via csv.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(rows)
    return table


@pytest.mark.parametrize("column", ["file_attributes", "region_attributes"])
@pytest.mark.parametrize("caption", ["", "leaf number {}"])
@pytest.mark.parametrize("options", [{}, {"label_column": "COLUMN"}])
@pytest.mark.parametrize("kind", ["radio", "checkbox"])
def test_a_value_of_objects_in_cells_becomes_the_label_by_the_command(
    tmp_path: Path, column: str, caption: str, options: dict[str, str], kind: str
) -> None:
    attributes = [
        {
            "caption": caption.format(at),
            "public_domain": "no",
            "disease": LABELS[at] if kind == "radio" else {LABELS[at]: True},
        }
        for at in range(NUM)
    ]
    attributes[1] = dict(reversed(attributes[1].items()))
    table = via_table(tmp_path, attributes, column)
    error = refused(table, **dict.fromkeys(options, column))
    assert f"column {column!r} holds JSON objects" in error.what
    assert str(error.fix).startswith("To learn 'disease', such as 'ok': python -c")
    commands = commands_in(error.fix)
    assert labels_of(typed_listing(commands[0])) == dict(zip(PICTURES, LABELS, strict=True))
    assert len(commands) == 1


def test_each_of_several_values_that_may_be_labels_has_a_command(tmp_path: Path) -> None:
    attributes = [{"lit": ["yes", "no"][at % 2], "class": LABELS[at]} for at in range(NUM)]
    error = refused(via_table(tmp_path, attributes, "file_attributes"))
    first, second = commands_in(error.fix)
    assert list(labels_of(typed_listing(first)).values()) == LABELS
    assert set(labels_of(typed_listing(second)).values()) == {"yes", "no"}


def test_objects_with_several_labels_have_no_class_of_their_marks(tmp_path: Path) -> None:
    attributes = [{"seen": dict.fromkeys(CLASSES[: 1 + at % 3], True)} for at in range(NUM)]
    error = refused(via_table(tmp_path, attributes, "file_attributes"))
    assert "none of them varies and repeats" in error.what
    assert '":' not in str(error.fix)


def test_the_json_project_of_via_is_read_as_its_pictures(tmp_path: Path) -> None:
    fill(tmp_path)
    pictures = {
        f"{name}{at}": {"filename": name, "file_attributes": {"disease": LABELS[at]}, "regions": []}
        for at, name in enumerate(PICTURES)
    }
    table = tmp_path / "via.json"
    table.write_text(json.dumps({"_via_settings": {"a": 1}, "_via_img_metadata": pictures}))
    found = typed_listing(commands_in(refused(table).fix)[0])
    assert labels_of(found) == dict(zip(PICTURES, LABELS, strict=True))
