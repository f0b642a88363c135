"""Tables that trackers export: one row per run, one file per metric, one row per value."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.errors import DataError
from stepladder.records.audit import Audit, AuditedRun

ACC = (0.61, 0.70, 0.76, 0.80, 0.83, 0.82, 0.81, 0.815)
LOSS = (1.6, 1.1, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
BEST = 0.83


def audit_of(folder: Path, text: str, name: str = "runs.csv") -> Audit:
    (folder / name).write_text(text, encoding="utf-8")
    return audit([str(folder / name)])


def brief(run: AuditedRun) -> tuple[str, float | None, float | None, float | None]:
    return run.log.name, run.result, run.log.total_s, run.log.epochs


RESULTS = [("base", 0.8125, 738.0, 20.0), ("failed", None, 41.0, None), ("long", 0.8531, 1554.0, 20.0)]  # fmt: skip
TABLES = {
    "mlflow": (
        "Start Time,Duration,Run ID,Name,User,Status,batch_size,epochs,lr,train_loss,val_accuracy,val_loss\n"
        "2021-09-27 10:11:12,12.3min,cfcd208495d565ef,base,ann,FINISHED,32,20,0.01,0.412,0.8125,0.6021\n"
        "2021-09-27 11:11:12,41s,c4ca4238a0b92382,failed,ann,FAILED,256,20,0.01,,,\n"
        "2021-09-27 12:11:12,25.9min,c81e728d9d4c2f63,long,ann,FINISHED,32,20,0.01,0.301,0.8531,0.5012\n"
    ),
    "mlflow_without_ids": (
        "Start Time,Duration,Name,Status,batch_size,epochs,val_accuracy\n"
        "2021-09-27 10:11:12,12.3min,base,FINISHED,32,20,0.8125\n"
        "2021-09-27 11:11:12,41s,failed,FAILED,256,20,\n"
        "2021-09-27 12:11:12,25.9min,long,FINISHED,32,20,0.8531\n"
    ),
    "search_runs": (
        "run_id,experiment_id,status,artifact_uri,start_time,end_time,metrics.val_accuracy,params.epochs,tags.mlflow.runName\n"
        "cfcd208495d565ef,1,FINISHED,s3://a,2021-09-27 10:00:00+00:00,2021-09-27 10:12:18+00:00,0.8125,20,base\n"
        "c4ca4238a0b92382,1,FAILED,s3://a,2021-09-27 11:00:00+00:00,2021-09-27 11:00:41+00:00,,20,failed\n"
        "c81e728d9d4c2f63,1,FINISHED,s3://a,2021-09-27 12:00:00+00:00,2021-09-27 12:25:54+00:00,0.8531,20,long\n"
    ),
    "wandb": (
        '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","batch_size","epochs","val_accuracy"\n'
        '"base","finished","-","ann","","2021-09-27T10:11:12.000Z","738","","32","20","0.8125"\n'
        '"failed","crashed","-","ann","","2021-09-27T10:11:12.000Z","41","","32","20",""\n'
        '"long","finished","-","ann","","2021-09-27T10:11:12.000Z","1554","","32","20","0.8531"\n'
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_runs_is_a_training_for_each_by_its_name(kind: str, tmp_path: Path) -> None:
    found = audit_of(tmp_path, TABLES[kind])
    assert [brief(run) for run in found.runs] == RESULTS
    assert [(diff.first, diff.second) for diff in found.differences] == [("base", "long")]
    (held_out,) = (f for f in found.runs[1].findings if f.check == "held_out")
    assert "it is not compared" in held_out.evidence


def test_runs_of_one_name_have_their_ids(tmp_path: Path) -> None:
    found = audit_of(tmp_path, TABLES["mlflow"].replace(",long,", ",base,"))
    assert [run.log.name for run in found.runs] == ["base (cfcd2084)", "failed", "base (c81e728d)"]


def test_a_column_of_names_does_not_part_a_log_of_epochs(tmp_path: Path) -> None:
    rows = "".join(f"net,running,{k + 1},{acc}\n" for k, acc in enumerate(ACC))
    (run,) = audit_of(tmp_path, "name,status,epoch,val_acc\n" + rows).runs
    assert (run.result, run.best_epoch) == (BEST, 5)


def write_tags(folder: Path, of: str = "run-a_{split}-tag-{tag}.csv") -> list[str]:
    """Write the files of TensorBoard's download button: of a training and its validation."""
    values = {
        ("train", "epoch_loss"): LOSS,
        ("validation", "epoch_loss"): LOSS[::-1],
        ("validation", "epoch_accuracy"): ACC,
    }
    files = []
    for (split, tag), numbers in values.items():
        rows = "".join(f"{1619761800 + 60 * k}.0,{k},{num}\n" for k, num in enumerate(numbers))
        files.append(folder / of.format(split=split, tag=tag))
        files[-1].write_text("Wall time,Step,Value\n" + rows, encoding="utf-8")
    return list(map(str, files))


@pytest.mark.parametrize(
    "of", ["run-a_{split}-tag-{tag}.csv", "run_a_{split}-tag-{tag}.csv", "run-a_{tag}_{split}-tag-{tag}.csv"]
)  # fmt: skip
def test_the_files_of_tensorboards_download_button_are_one_training(
    of: str, tmp_path: Path
) -> None:
    files = write_tags(tmp_path, of)
    for words in ([str(tmp_path)], files, files[:1]):
        (run,) = audit(words).runs
        assert (run.log.name, run.metric, run.result, run.best_epoch) == (
            "a",
            "val_accuracy",
            BEST,
            5,
        )
        assert [row.train_loss for row in run.log.rows] == list(LOSS)
        assert [row.val_loss for row in run.log.rows] == list(LOSS[::-1])
        assert (run.log.total_s, run.log.epochs) == (420, 8)


def test_files_of_several_runs_are_a_training_each(tmp_path: Path) -> None:
    write_tags(tmp_path)
    write_tags(tmp_path, "run-b_{split}-tag-{tag}.csv")
    runs = audit([str(tmp_path)]).runs
    assert [(run.log.name, run.best_epoch) for run in runs] == [("a", 5), ("b", 5)]


@pytest.mark.parametrize(
    "header", ["run_id,key,value,step,timestamp", "Run,metric,value,step,wall_time"]
)
def test_a_history_with_one_row_per_value_has_a_column_per_metric(
    header: str, tmp_path: Path
) -> None:
    rows = [
        f"{run},{key},{values[k]},{k + 1},{1619761800000 + 60000 * k}\n"
        for run in ("one", "two")
        for key, values in (("val_accuracy", ACC), ("train_loss", LOSS), ("val_loss", LOSS))
        for k in range(8)
    ]
    runs = audit_of(tmp_path, f"{header}\n{''.join(rows)}").runs
    assert [run.log.name for run in runs] == ["one", "two"]
    for run in runs:
        assert (run.result, run.best_step, len(run.log.rows)) == (BEST, 5, 8)
        assert run.log.rows[3].train_loss == LOSS[3]
        assert run.log.total_s == 420


def test_a_folder_of_other_files_names_one_that_can_be_passed(tmp_path: Path) -> None:
    (tmp_path / "wandb_export.csv").write_text(TABLES["wandb"])
    with pytest.raises(DataError, match=r"Did you mean .*wandb_export\.csv\? Pass one file\."):
        audit([str(tmp_path)])
    assert len(audit([str(tmp_path / "wandb_export.csv")]).runs) == 3


def test_a_run_of_a_table_that_failed_after_it_had_a_result_says_so(tmp_path: Path) -> None:
    table = "Name,State,val_accuracy\na,finished,0.8\nb,crashed,0.7\nc,failed,\n"
    runs = audit_of(tmp_path, table).runs
    checks = [{found.check for found in run.findings} for run in runs]
    assert ["ended" in names for names in checks] == [False, True, False]
    assert "held_out" in checks[2], "which says that it has not finished"
