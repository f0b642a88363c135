"""Which checkpoint is kept, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.utils.data import ConcatDataset

from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import open_job
from stepladder.checks.machine.checkpoint_room import CHECK as ROOM
from stepladder.checks.run import run_check
from stepladder.checks.validation.checkpoint_keeping import CHECK as KEEPING
from stepladder.config.choices import Split
from stepladder.config.recipe import StoppingConfig
from stepladder.records.findings import Finding, Outcome


class NoValidation(SoundPictures):
    def data(self, split: Split):  # type: ignore[no-untyped-def]
        return None if split is Split.VAL else super().data(split)


def look(example: Example, folder: Path, check: object = KEEPING) -> Finding:
    job = open_job(example.config(folder), example.task, task_name="example")
    return run_check(check, job)  # type: ignore[arg-type]


def stopping(config: StoppingConfig) -> Example:
    return Example(recipe=replace(sound_recipe(), stopping=config))


def test_without_validation_the_best_is_not_known(tmp_path: Path) -> None:
    assert look(Example(task=NoValidation()), tmp_path).outcome is Outcome.WARNED
    recipe = replace(sound_recipe(), stopping=StoppingConfig(early=False, restore_best=False))
    last = look(Example(task=NoValidation(), recipe=recipe), tmp_path)
    assert last.outcome is Outcome.PASSED


def test_a_validation_that_never_comes_chooses_nothing(tmp_path: Path) -> None:
    never = look(stopping(StoppingConfig(validate_every_epochs=9)), tmp_path)
    assert "ends before its first validation" in never.evidence
    in_time = look(stopping(StoppingConfig(validate_every_epochs=8)), tmp_path)
    assert in_time.outcome is Outcome.PASSED
    assert in_time.evidence.endswith("at most 1 validation")


def test_the_last_weights_are_not_the_best_if_validation_could_choose(tmp_path: Path) -> None:
    class Many(SoundPictures):
        def data(self, split: Split):  # type: ignore[no-untyped-def]
            part = super().data(split)
            return ConcatDataset([part] * 3) if split is Split.VAL else part

    recipe = replace(sound_recipe(), stopping=StoppingConfig(patience=6, restore_best=False))
    assert look(Example(recipe=recipe), tmp_path).outcome is Outcome.PASSED  # 128 are not enough
    many = look(Example(task=Many(), recipe=recipe), tmp_path)
    assert many.outcome is Outcome.WARNED
    assert "ends the training 6 validations after the best one" in many.evidence


def test_a_folder_that_takes_no_files_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    finding = look(Example(run_dir=Path("/proc/stepladder/run")), tmp_path, ROOM)
    assert finding.outcome is Outcome.FAILED
    assert finding.fault == "no_room_for_checkpoints"
