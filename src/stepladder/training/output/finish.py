"""The end of a run: evaluate the best weights on the held-out splits, and write the results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stepladder.config.choices import ScheduleKind
from stepladder.data.features.feature_source import examples_of
from stepladder.data.prepare.near_file import near_warnings
from stepladder.machine import EnergyMeter
from stepladder.machine.activity import on_its_own
from stepladder.optim.schedule import horizon_steps
from stepladder.records import read_jsonl, write_json
from stepladder.training.clock import Phase
from stepladder.training.evaluate import Evaluation
from stepladder.training.output.events import EVENTS_FILE
from stepladder.training.output.results import metric_fields, write_predictions, write_thumbs
from stepladder.training.ranks.hosts import by_name, received_by_host
from stepladder.training.session import Session
from stepladder.training.setup.build import Sources, make_held_out_reader

SUMMARY_FILE = "summary.json"


def finish_run(
    run: Session, sources: Sources, folder: Path, *, reason: str, energy: EnergyMeter
) -> dict[str, Any]:
    """Evaluate the final weights, and write predictions, thumbnails and summary.

    Args:
        reason: why training stopped.
        energy: measures since this attempt began.

    Raises:
        EvaluationCancelled: after a signal; the run is saved, and a resume returns here directly.
    """
    _warn_of_schedule(run)
    _warn_of_validations(run, folder)
    run.restore_best()
    results: dict[str, tuple[Evaluation, Any]] = {}
    run.close()  # free space in a small cache for the files of test
    with run.clock.phase(Phase.TEST):
        for split, source in (("val", sources.val), ("test", sources.test)):
            reader = make_held_out_reader(
                source,
                run.recipe.batch,
                run.recipe.loader,
                run.recipe.data.where,
                run.world,
                hosts=run.recipe.data.hosts,
            )
            if reader is not None:
                results[split] = (run.evaluate(reader), examples_of(source))
                reader.close()
    received = received_by_host(run.downloaded, run.world)
    classes = run.state.facts["describe"].get("classes", ())
    with on_its_own("writing the predictions"):
        write_predictions(folder, results, classes)
        if results:
            result, source = results.get("test") or results["val"]
            write_thumbs(folder, result, source, classes)
    summary = {
        **partial_summary(run, sources, status="finished", reason=reason),
        **metric_fields("val", results["val"][0] if "val" in results else None),
        **metric_fields("test", results["test"][0] if "test" in results else None),
        "received_bytes_by_host": by_name(received, run.world) if received else None,
        "energy_wh": energy.stop(),
    }
    at, compared = (
        run.position,
        {"baseline": run.state.against.last()} if run.state.against.last() else {},
    )
    with on_its_own("writing the summary"):
        run.events.write("stop", step=at.step, epoch=at.epoch, reason=reason, **compared)
        write_json(folder / SUMMARY_FILE, summary)
    return summary


def partial_summary(
    run: Session, sources: Sources, *, status: str, reason: str | None
) -> dict[str, Any]:
    """Return the summary fields that are known before the final evaluation."""
    if run.clock.device is not None:
        run.clock.device.close()
    host, best, batch = run.clock.host(), run.rule.best.best, run.recipe.batch
    micro = min(batch.micro_batch_size or batch.global_batch_size, batch.global_batch_size)
    workers = run.recipe.asynchronous
    num = workers.num_in_batch if workers.is_on else run.world.size
    per_rank = -(-batch.global_batch_size // num)
    train_s = host.wall_s - sum(
        host.phases_s.get(phase, 0.0) for phase in (Phase.SETUP, Phase.TEST)
    )
    no_advice = run.clock.truth().why_no_advice()
    are_pictures = {"size", "fit"} <= set(run.state.facts["describe"])
    return {
        "status": status,
        "stop_reason": reason,
        **metric_fields("val", None),
        **metric_fields("test", None),
        "num_train": run.num_train,
        "num_val": len(sources.val) if sources.val is not None else 0,
        "num_test": len(sources.test) if sources.test is not None else 0,
        "best_epoch": best.epoch if best is not None and math.isfinite(best.value) else None,
        "restore_best": run.recipe.stopping.restore_best,
        "best_step": best.step if best is not None and math.isfinite(best.value) else None,
        "epochs": run.position.epoch,
        "steps": run.position.step,
        "train_s": train_s,
        "total_s": host.wall_s,
        "images_per_s": run.samples_per_s(),
        "data_wait_frac": run.clock.truth().data_wait_frac(),
        "phases_s": {**host.phases_s, "unexplained": host.unexplained_s},
        "device_phases_s": _device_phases(run),
        "no_advice_because": no_advice,
        "baseline": run.state.against.last(),
        "received_bytes_by_host": None,
        "energy_wh": None,
        "global_batch_size": batch.global_batch_size,
        "per_device_batch_size": min(micro, per_rank),
        "accumulation_steps": -(-per_rank // min(micro, per_rank)),
        "devices": run.world.size,
        "device": run.device.type,
        "precision": run.recipe.device.precision,
        "seed": run.recipe.seed,
        "fingerprint": sources.train.fingerprint,
        "classes": list(run.state.facts["describe"].get("classes", ())),
        "are_pictures": are_pictures,
        "attempts": run.events.attempt,
        "warnings": [
            *run.state.warnings,
            *(near_warnings(run.recipe.data.store) if are_pictures else ()),
        ],
    }


def _device_phases(run: Session) -> dict[str, float] | None:
    if run.clock.device is None:
        return None
    timeline = run.clock.device.so_far()
    return {**timeline.phases_s, "unexplained": timeline.unexplained_s}


def _warn_of_schedule(run: Session) -> None:
    schedule, at = run.recipe.schedule, run.position
    per_epoch = max(run.schedule_steps, 1)
    horizon = horizon_steps(schedule, steps_per_epoch=per_epoch) / per_epoch
    done = (at.gained if run.is_adaptive else at.stage_step) / per_epoch
    if schedule.kind is ScheduleKind.COSINE and done < horizon / 2:
        run.warn(
            f"the learning rate hardly decayed, because training stopped after {done:.1f} epochs, "
            f"but the cosine schedule lowers it to its end over {horizon:.4g} epochs; the model "
            "would probably be better with a shorter schedule: --schedule.horizon-epochs "
            f"{max(round(done), 1)}"
        )


def _warn_of_validations(run: Session, folder: Path) -> None:
    """Warn if any validation had a non-finite loss, which says nothing about its epoch."""
    events = [e for e in read_jsonl(folder / EVENTS_FILE) if e.get("event") == "validation"]
    num_bad = sum(not math.isfinite(float(event["val_loss"])) for event in events)
    if num_bad == 0:
        return
    best = run.rule.best.best
    said = f"the validation loss was NaN or infinite in {num_bad} of {len(events)} validations"
    if best is not None and not math.isfinite(best.value):
        weights = f"those after epoch {best.epoch}"
        if not run.recipe.stopping.restore_best:
            weights = "the last ones"
        said += f", so it is unknown which weights are best, and the final model has {weights}"
    elif num_bad == len(events):
        said += ", so the accuracy may be wrong, too"
    else:
        said += "; these count as worse than all others when the best weights are chosen"
    run.warn(f"{said}. Look for NaN and infinity in the validation inputs and targets.")
