"""Flags, file and defaults, as the commands parse them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepladder.cli.commands import climb, fit_recipe, population, prepare, train
from stepladder.cli.job_flags import read_job, seconds_of
from stepladder.cli.main import main
from stepladder.config.choices import ClimbAim, Encoding, TrainMode
from stepladder.config.load import load_job
from stepladder.config.schema import options
from stepladder.errors import UsageError


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        "seed: 5\nprepare:\n  size: 64\nbatch:\n  lr: 0.5\n  global_batch_size: 8\n"
    )


@pytest.mark.parametrize(
    ("words", "flag", "fix"),
    [
        (["--stopping.early=false"], "--stopping.early", "--stopping.no-early."),
        (["--stopping.early", "False"], "--stopping.early", "--stopping.no-early."),
        (["--stopping.no-early", "yes"], "--stopping.no-early", "Write --stopping.early,"),
        (["run.yaml", "--deterministic", "true"], "--deterministic", "--no-deterministic."),
        (["--fresh=yes"], "--fresh", "leave it out"),
        (["--json", "on"], "--json", "leave it out"),
    ],
)
def test_a_value_for_a_flag_without_one_does_not_pass_for_a_file(
    words: list[str], flag: str, fix: str
) -> None:
    with pytest.raises(UsageError, match="takes no value") as caught:
        read_job(climb.Flags, words, command="climb")
    assert caught.value.where == flag
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    "words",
    [
        ["other.yaml", "--config", "run.yaml"],
        ["--config=run.yaml", "other.yaml"],
    ],
)
def test_two_files_of_options_are_refused(words: list[str]) -> None:
    Path("other.yaml").write_text("seed: 6\n")
    for read in (
        lambda: read_job(climb.Flags, words, command="climb"),
        lambda: train.read(words),
        lambda: prepare.read(words),
    ):
        with pytest.raises(
            UsageError, match=r"there are two files of options: this one, and run.yaml"
        ) as caught:
            read()
        assert caught.value.where == "other.yaml"


def test_two_budgets_are_refused() -> None:
    words = ["run.yaml", "--budget", "10m", "--ladder.budget-s", "60"]
    with pytest.raises(UsageError, match=r"the same option as --ladder.budget-s"):
        read_job(climb.Flags, words, command="climb")


def test_a_task_file_without_its_task_suggests_what_to_add() -> None:
    Path("my_job.py").write_text("class Digits: ...\n")
    with pytest.raises(UsageError, match="which Task of this Python file to use") as caught:
        read_job(climb.Flags, ["my_job.py"], command="climb")
    assert "stepladder climb my_job.py:" in (caught.value.fix or "")


@pytest.mark.parametrize(
    "words",
    [
        ["run.yaml", "--batch.lr", "0.25"],
        ["--batch.lr", "0.25", "run.yaml"],
        ["--config", "run.yaml", "--batch.lr=0.25"],
        ["--batch.lr", "0.25", "--config=run.yaml"],
    ],
)
def test_the_file_may_be_anywhere(words: list[str]) -> None:
    _, resolved = train.read(words)
    recipe = resolved.job.recipe
    assert (recipe.seed, recipe.batch.lr, recipe.batch.global_batch_size) == (5, 0.25, 8)
    assert resolved.origin("seed") == "run.yaml:1"
    assert resolved.origin("batch.lr") == "--batch.lr"
    assert resolved.origin("batch.lr_all") == "default"


def test_a_flag_counts_as_said_even_where_it_says_the_default() -> None:
    _, resolved = train.read(["run.yaml", "--seed", "0", "--stopping.early"])
    assert resolved.job.recipe.seed == 0
    assert resolved.origin("seed") == "--seed"
    assert resolved.origin("stopping.early") == "--stopping.early"


def test_flags_are_written_with_hyphens_or_underscores() -> None:
    for flag in ("--batch.global-batch-size", "--batch.global_batch_size"):
        _, resolved = train.read([flag, "4"])
        assert resolved.job.recipe.batch.global_batch_size == 4
        assert resolved.origin("batch.global_batch_size") == flag


GROUPS = dict.fromkeys(key.partition(".")[0] for key in options() if not key.startswith("prepare."))


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_is_a_flag_of_its_command(group: str) -> None:
    listed = {key: option for key, option in options().items() if key.partition(".")[0] == group}
    words: dict[str, list[str]] = {}
    for key, option in listed.items():
        flag = f"--{key}".replace("_", "-")
        if isinstance(option.default, bool):
            head, dot, last = key.replace("_", "-").rpartition(".")
            words[key] = [f"--{head}{dot}no-{last}" if option.default else flag]
        else:
            words[key] = [flag, "none" if option.default is None else str(option.default)]
    typed = [word for of_option in words.values() for word in of_option]
    if group == "ladder":
        _, resolved = read_job(climb.Flags, typed, command="climb")
    elif group == "population":
        _, resolved = read_job(population.Flags, typed, command="population")
    else:
        _, resolved = train.read(typed)
    for key, option in listed.items():
        assert resolved.origin(key) == words[key][0]
        if key == "run.dir":  # auto
            assert resolved.job.run.dir == Path("runs/store")
            continue
        is_switch = isinstance(option.default, bool)
        assert option.value(resolved.job) == (not option.default if is_switch else option.default)


def test_prepare_takes_a_source_and_its_options_without_a_prefix() -> None:
    words = [
        "photos",
        "--out",
        "s",
        "--size",
        "96",
        "--encoding",
        "jpeg",
        "--group-by",
        "folder",
        "--max-bad",
        "0.5",
    ]
    _, resolved = prepare.read(words)
    config = resolved.job.prepare
    assert (config.source, config.out, config.size) == (Path("photos"), Path("s"), 96)
    assert (config.encoding, config.group_by, config.max_bad) == (Encoding.JPEG, "folder", 0.5)
    assert resolved.origin("prepare.size") == "--size"


@pytest.mark.parametrize("words", [["run.yaml"], ["photos", "--config", "run.yaml"]])
def test_prepare_takes_a_file_of_options(words: list[str]) -> None:
    _, resolved = prepare.read(words)
    assert resolved.job.prepare.size == 64
    source = Path("photos" if words[0] == "photos" else "images")
    assert resolved.job.prepare.source == source


def test_a_csv_is_a_source_and_no_config() -> None:
    _, resolved = prepare.read(["labels.csv"])
    assert resolved.job.prepare.source == Path("labels.csv")


@pytest.mark.parametrize("words", [["--task", "task.py:Mine"], ["task.py:Mine"]])
def test_a_task_is_not_an_option_of_a_file(words: list[str]) -> None:
    flags, resolved = train.read([*words, "--train", "all"])
    assert flags.task == "task.py:Mine"
    assert flags.target is None
    assert resolved.job.recipe.train is TrainMode.ALL
    assert not any("task" in key for key in options())


def test_a_file_of_tasks_without_a_name_says_what_to_type() -> None:
    with pytest.raises(
        UsageError, match="does not say which Task of this Python file to use"
    ) as error:
        train.read(["task.py"])
    assert "stepladder train task.py:MyTask" in error.value.fix


def test_show_config_prints_a_config_that_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.run(["run.yaml", "--show-config", "--train", "all"]) == 0
    Path("shown.yaml").write_text(capsys.readouterr().out)
    job = load_job(Path("shown.yaml"))
    assert (job.recipe.seed, job.recipe.train, job.prepare.size) == (5, TrainMode.ALL, 64)


def test_a_first_word_names_a_file_of_options_or_a_task() -> None:
    flags, resolved = read_job(climb.Flags, ["run.yaml"], command="climb")
    assert (resolved.job.recipe.seed, flags.task) == (5, None)
    flags, resolved = read_job(
        climb.Flags, ["jobs/my_job.py:Digits", "--config", "run.yaml"], command="climb"
    )
    assert (resolved.job.recipe.seed, flags.task) == (5, "jobs/my_job.py:Digits")


def test_a_task_may_follow_flags() -> None:
    words = ["--budget", "90s", "my_job.py:Digits", "--seed", "7"]
    flags, resolved = read_job(climb.Flags, words, command="climb")
    assert (flags.task, resolved.job.recipe.seed) == ("my_job.py:Digits", 7)
    assert resolved.job.ladder.budget_s == 90


@pytest.mark.parametrize(
    "words", [["my_job.py:Digits", "run.yaml"], ["run.yaml", "--task", "my_job.py:Digits"]]
)
def test_a_task_and_a_file_of_options_may_both_be_words(words: list[str]) -> None:
    flags, resolved = read_job(climb.Flags, words, command="climb")
    assert (resolved.job.recipe.seed, flags.task) == (5, "my_job.py:Digits")


@pytest.mark.parametrize("other", ["a.py:B", "--task=a.py:B"])
def test_two_tasks_are_refused(other: str) -> None:
    with pytest.raises(UsageError, match="names two Tasks"):
        read_job(climb.Flags, ["my_job.py:Digits", other], command="climb")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("45", 45.0)]
)
def test_a_budget_is_a_time_span(text: str, seconds: float) -> None:
    words = ["run.yaml", "--budget", text]
    _, resolved = read_job(climb.Flags, words, command="climb")
    assert resolved.job.ladder.budget_s == seconds
    assert resolved.origin("ladder.budget_s") == "--budget"


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "0m", "-5m", "1e3"])
def test_what_is_not_a_time_span_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a length of time"):
        seconds_of(text, where="--budget")


def test_the_aim_is_a_flag_of_its_own_and_is_not_said_twice() -> None:
    words = ["--aim", "accuracy"]
    _, resolved = read_job(climb.Flags, words, command="climb")
    assert resolved.job.ladder.aim is ClimbAim.ACCURACY
    assert resolved.origin("ladder.aim") == "--aim"
    twice = [*words, "--ladder.aim", "time"]
    with pytest.raises(UsageError, match=r"the same option as --ladder\.aim"):
        read_job(climb.Flags, twice, command="climb")


def test_fit_recipe_has_an_aim_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("ladder:\n  aim: time\n")
    assert fit_recipe.run(["job.yaml", "--show-config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ladder.aim"] == {"value": "fit", "origin": "fit-recipe"}
    with pytest.raises(UsageError, match="is already set by fit-recipe"):
        fit_recipe.run(["job.yaml", "--ladder.aim", "accuracy"])


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("20GB", 20 * 10**9), ("1.5 mb", 1_500_000), ("123", 123)]
)
def test_a_size_may_have_a_unit(text: str, num_bytes: int) -> None:
    _, resolved = train.read(["run.yaml", "--data.max-cache-bytes", text])
    assert resolved.job.recipe.data.max_cache_bytes == num_bytes


@pytest.mark.parametrize("text", ["big", "1.5", "GB", "1 GiB"])
def test_a_number_that_is_not_an_integer_is_reported(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        train.read(["run.yaml", "--data.max-cache-bytes", text])
    assert caught.value.code == 2
    assert f"{text!r} is not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--loader.threads", "4"], 4),
        (["--loader.threads=0"], 0),
        (["--loader.threads", "auto"], "auto"),
        ([], "auto"),
    ],
)
def test_a_number_that_may_be_auto_is_set(
    words: list[str], expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, "--show-config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["loader.threads"]["value"] == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--features.cached"], True),
        (["--features.cached", "--quiet"], True),
        (["--features.no-cached"], False),
        (["--features.cached", "false"], False),
        (["--features.cached=auto"], "auto"),
        ([], "auto"),
    ],
)
def test_a_switch_that_may_be_auto_is_turned_on_and_off(
    words: list[str], expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, "--show-config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["features.cached"]["value"] == expected
