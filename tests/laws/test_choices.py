"""A text option is a name, a path or an address; choices among named things are enums."""

from __future__ import annotations

import dataclasses
import inspect
import re
from enum import StrEnum
from pathlib import Path
from types import ModuleType

import pytest

import stepladder
from stepladder.config import choices, options, recipe
from stepladder.config.schema import Option, field_docs, group_names
from stepladder.config.schema import options as all_options

# External names: of a timm model, CSV columns, folders, a server, an expression on paths.
NAMES = {
    "model.name",
    "population.genes",
    "prepare.image_column",
    "prepare.path_column",
    "prepare.label_column",
    "prepare.split_column",
    "prepare.group_by",
    "prepare.label_pattern",
    "prepare.columns",
    "prepare.path_format",
    "prepare.split_folders",
    "run.mlflow_uri",
}
OPTIONS = tuple(all_options().values())


CODE = Path(stepladder.__file__).parent
PAGE = CODE.parents[1] / "docs" / "adding-an-option.md"


def classes(module: ModuleType) -> list[type]:
    members = vars(module).values()
    return [
        item for item in members if inspect.isclass(item) and item.__module__ == module.__name__
    ]


def test_text_options_are_names() -> None:
    assert {option.key for option in OPTIONS if str in option.wanted.kinds} == NAMES


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_says_what_it_does(option: Option) -> None:
    doc = field_docs(option.group)[option.path[-1]]
    assert doc.endswith(".")
    assert "—" not in doc


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_no_option_has_the_name_of_a_group(option: Option) -> None:
    assert not any(other.key.startswith(f"{option.key}.") for other in OPTIONS)


@pytest.mark.parametrize(
    "kind", [*classes(options), *classes(recipe)], ids=lambda kind: kind.__name__
)
def test_config_is_frozen_and_named(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    parameters = kind.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen
    assert all(field.kw_only for field in dataclasses.fields(kind))
    hash(kind())


@pytest.mark.parametrize("kind", classes(choices), ids=lambda kind: kind.__name__)
def test_a_choice_is_a_string_enum_whose_values_are_its_names(kind: type) -> None:
    assert issubclass(kind, StrEnum)
    assert all(item.value == item.name.lower() for item in kind)
    assert kind.__doc__


def test_the_worked_example_is_the_code_that_the_page_shows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = [CODE / "config" / "recipe.py", CODE / "task" / "image_classification.py"]
    files = "".join(file.read_text(encoding="utf-8") for file in code)
    shown = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 3
    assert all(block in files for block in shown)


def test_the_groups_of_the_page_are_those_of_the_config_and_read_where_it_says() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for groups, _ in rows for name in re.findall(r"`(\w+)`", groups)}
    assert named == set(group_names())
    for path in (path for _, places in rows for path in re.findall(r"`(.*?)`", places)):
        assert (CODE / path).exists(), path
