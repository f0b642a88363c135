"""The training loop."""

from __future__ import annotations

from stepladder.training.clock import Phase
from stepladder.training.training import Training


def fit(run: Training) -> str:
    """Train one stage until a stopping condition is met.

    Returns:
        The stop reason: "early_stopping", "max_epochs" or "max_steps"; for a run also
        "worse_than_baseline", "max_time" or "signal".

    Raises:
        DivergedError: if a loss is not finite; the weights are those before that step.
        DataError: if the data has fewer examples than its length.
    """
    clock, at = run.clock, run.position
    run.agree()
    if run.is_validation_pending:
        run.validate()
    while (reason := run.reason_to_stop()) is None:
        batches = run.train_reader.epoch(at.epoch, start=at.offset)
        try:
            while True:
                with clock.phase(Phase.DATA_WAIT):
                    batch = next(batches, None)
                if batch is None:
                    run.refuse_short_epoch()
                with clock.phase(Phase.TO_DEVICE):
                    batch = batch.to(run.device, memory_format=run.memory_format)
                with clock.phase(Phase.AUGMENT):
                    batch = run.augment(batch)
                num_examples = run.num_in_step(batch)
                is_log_due = run.is_log_due(num_examples)
                run.take_step(batch, is_log_due=is_log_due, num_examples=num_examples)

                is_epoch_end = run.count(num_examples)
                run.show()
                if is_log_due:
                    run.log()
                if run.is_validation_due(is_epoch_end):
                    run.validate()
                if run.is_commit_due():
                    run.commit()
                if (reason := run.reason_to_stop()) is not None:
                    return reason
                if is_epoch_end:
                    break
        finally:
            batches.close()
    return reason
