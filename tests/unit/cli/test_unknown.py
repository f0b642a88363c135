"""Options that a command does not have, and the names that people type."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from stepladder.cli.commands import COMMANDS, Command, climb, completion, prepare, train
from stepladder.cli.main import main
from stepladder.cli.parse import parse
from stepladder.cli.unknown import flag_names
from stepladder.config.schema import ALIASES, options
from stepladder.errors import UsageError


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("batch:\n  lr: 0.5\n")
    Path("photos").mkdir()


def flags_of(command: Command) -> type:
    flags: type = importlib.import_module(command.module).Flags
    return flags


def flags_in_help(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    heads = [line[2:].partition("  ")[0] for line in lines if re.match(r"[│ ] --?[a-z]", line)]
    return [flag for head in heads for flag in re.findall(r"(?:^|, )(--?[a-z][\w.-]*)", head)]


def fix_of(command: str, *words: str) -> tuple[str, str]:
    flags = flags_of(next(c for c in COMMANDS if c.name == command))
    with pytest.raises(UsageError) as caught:
        parse(flags, words, command=command)
    return caught.value.where or "", caught.value.fix or ""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_names_of_flags_are_those_of_the_help(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    names = set(flag_names(flags_of(command)))
    assert names | {"-h", "--help"} == set(flags_in_help(command.name, capsys))
    others = getattr(importlib.import_module(command.module), "OTHER_FLAGS", ())
    names |= {name for flags in others for name in flag_names(flags)}
    assert completion.flags_of_commands()[command.name] == sorted(
        {name for name in names if name.startswith("--")} | {"--help"}
    )


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--bacth-size", "8"], "--batch-size 8"),
        (["--batch_sise=8"], "--batch-size 8"),
        (["--batch.lrr", "3"], "--batch.lr 3"),
        (["--learning-rate", "0.1"], "--lr 0.1"),
        (["--num_train_epochs", "3"], "--epochs 3"),
        (["--epoch=3"], "--epochs 3"),
        (["-lr", "0.1"], "--lr 0.1"),
        (["-b", "4"], "--batch-size 4"),
        (["--optimizer", "sgd"], "--optimizer.name sgd"),
        (["--device", "cuda"], "--device.kind cuda"),
        (["--output-dir", "my runs"], "--run.dir 'my runs'"),
        (["--patience", "3"], "--stopping.patience 3"),
        (["--num-workers", "4"], "--loader.threads 4"),
        (["--overwirte", "--quiet"], "--overwrite"),
        (["--data-dir", "photos"], "--data photos"),
        (["--train-mode", "all"], "--train all"),
    ],
)
def test_a_misspelled_or_foreign_option_is_suggested_and_works(
    words: list[str], meant: str
) -> None:
    where, fix = fix_of("train", *words)
    assert where == words[0].partition("=")[0]
    assert fix == f"Did you mean {meant}?"
    flag, _, value = meant.partition(" ")
    train.read([flag, *([value.strip("'")] if value else [])])  # raises if it does not work


def test_an_option_of_another_command_is_not_suggested() -> None:
    assert fix_of("prepare", "--imgsz", "96")[1] == "Did you mean --size 96?"
    assert fix_of("prepare", "--output", "s")[1] == "Did you mean --out s?"
    assert fix_of("prepare", "--vall", "0.2")[1] == "Did you mean --val-frac 0.2?"
    assert fix_of("train", "--budget", "3m")[1] == "`stepladder train --help` lists the options."
    assert "lists the options" in fix_of("doctor", "--lr", "3")[1]


def test_a_negative_number_is_a_value() -> None:
    with pytest.raises(UsageError, match="above 0"):
        train.read(["--lr", "-1"])


@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("form", ["hyphens", "underscores", "equals"])
def test_a_short_name_sets_its_option_and_overrides_the_file(name: str, form: str) -> None:
    words_of = {"data": "shop", "model": "resnet18", "launch": "ray", "lr": "0.25"}
    value = {**words_of, "all_reduce": "ring", "buckets": "layer"}.get(name, "3")
    flag = "--" + (name if form == "underscores" else name.replace("_", "-"))
    words = [f"{flag}={value}"] if form == "equals" else [flag, value]
    _, resolved = train.read(["job.yaml", *words])
    found = options()[ALIASES[name]].value(resolved.job)
    assert str(found) == value
    assert resolved.origin(ALIASES[name]) == flag


def test_a_short_name_that_is_not_given_keeps_the_value_of_the_file() -> None:
    _, resolved = train.read(["job.yaml", "--epochs", "3"])
    assert resolved.job.recipe.batch.lr == 0.5
    assert resolved.origin("batch.lr") == "job.yaml:2"


@pytest.mark.parametrize("words", [["--lr", "1", "--batch.lr", "2"], ["photos", "--data", "shop"]])
def test_both_names_of_an_option_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="sets the same option as"):
        train.read(words)


def test_a_value_out_of_range_is_reported_with_the_flag_that_was_typed() -> None:
    with pytest.raises(UsageError, match="0 is not 1 or more") as caught:
        train.read(["--batch_size", "0"])
    assert caught.value.where == "--batch_size"


@pytest.mark.parametrize("command", ["train", "climb"])
def test_short_names_come_first_in_the_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = flags_in_help(command, capsys)
    short = ["--data", "--model", "--epochs", "--batch-size", "--lr", "--devices", "--launch"]
    assert flags[2:9] == short


def test_the_help_shows_the_value_of_the_file_as_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["climb", "job.yaml", "--help"])
    assert "same as --batch.lr. (default: 0.5)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "meant"), [("phtos", "photos"), ("jbo.yaml", "job.yaml"), ("Photo", "photos")]
)
def test_a_near_path_is_suggested(word: str, meant: str) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        train.read([word])
    assert caught.value.fix == f"Did you mean {meant}?"


def test_the_folder_of_a_run_says_how_to_resume_it() -> None:
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/events.jsonl").touch()
    with pytest.raises(UsageError, match="folder of an earlier run") as caught:
        climb.run(["runs/first"])
    assert "runs/first/config.yaml" in (caught.value.fix or "")


def test_prepare_has_no_short_names_of_a_job() -> None:
    assert not {f"--{name}" for name in ALIASES} & set(flag_names(prepare.Flags))
