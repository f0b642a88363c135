"""Faults around the steps: validation, retained graphs, checkpoints and seeds."""

from __future__ import annotations

import itertools

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.faults.models.restoring import ignored_plan, ignored_state
from stepladder.watching.seen.loaders import PassSeen
from stepladder.watching.seen.models import ModelSeen, SavedSeen
from stepladder.watching.seen.seen import Seen

_NO_VALIDATION = Unseen("no pass over a loader without learning was seen after training had begun")
_MANY_GRAPHS = 10
_OF_LAST_BATCH = 0.9  # of running statistics
_RARE = 0.34  # of the steps: anything called less often is not part of a step
_MIN_EVAL = 5
_MIN_OWN_LOADS = 2  # after different steps
_MIN_SEEDED = 24  # calls with the same number while examples are fetched
_MIN_RESTARTED = 3  # epochs
_MIN_USED = 6  # of the first of them: random numbers were drawn after it


def augmented_validation(seen: Seen) -> Answer:
    """Compares the first batch of one validation with that of the next."""
    known = []
    learnt = {loader.dataset_id for loader in seen.loaders if loader.training}
    for loader in seen.loaders:
        passes = [p for p in loader.validation if p.first_checksum is not None]
        if loader.dataset_id in learnt or len(passes) < 2:
            continue
        known.append(loader)
        if len({p.first_checksum for p in passes}) > 1:
            how = "shuffled" if loader.sampler == "random" else "augmented"
            return Found(
                evidence="the first batch of validation differs between validations: the data is "
                f"{how} each time",
                fix="Use shuffle=False and a transform without random parts for validation.",
                where=loader.where,
                numbers={"num_validations": len(passes)},
            )
    if not known:
        return Unseen("no loader was used for validation twice")
    return Sound("validations read the same data")


def train_mode_in_validation(seen: Seen) -> Answer:  # noqa: PLR0911  (one return per cause)
    """Checks the mode of models, and of layers that they call, where nothing is learned."""
    models = [m for m in seen.models if m.has_dropout or m.has_batch_norm]
    passes = _validations(seen)
    if (found := _active(seen)) is not None:
        return found
    if not models:
        return Unseen("no model with dropout or BatchNorm was seen")
    for where, one in passes:
        is_enough = one.is_whole or one.num_batches >= 2
        if is_enough and one.num_train_mode == one.num_forwards:
            return _train_mode(where, one.num_forwards)
    stepped = [o for o in seen.optimizers if o.num_steps]
    for model in models if len(stepped) == 1 else ():
        num = model.num_train_without_grad
        is_drawn = 2 * model.num_again >= num  # dropout is on to draw several outputs
        is_own = num >= 2 and not passes and num < _RARE * seen.num_steps and not is_drawn
        if is_own and model.num_train_mode:
            return _train_mode(model.without_grad_at or model.called_at, num)
    for model in models if not passes else ():
        if num := _num_let_go(model, seen):
            return _train_mode(model.dropped_at or model.called_at, num)
    if not passes and not any(m.num_train_without_grad for m in models):
        return _NO_VALIDATION
    return Sound("models are validated in evaluation mode")


def _active(seen: Seen) -> Found | None:
    """Find dropout and BatchNorm that are active while a model is in evaluation mode."""
    alive = next((m for m in seen.models if m.num_live_dropout >= 2), None)
    if alive is not None:
        return Found(
            evidence=f"dropout was active {alive.num_live_dropout} times while {alive.built} was "
            "in evaluation mode: functions such as F.dropout ignore the mode unless it is passed "
            "to them",
            fix="Pass the mode: F.dropout(x, p, training=self.training).",
            where=alive.live_dropout_at,
            numbers={"num_calls": alive.num_live_dropout},
        )
    called = ((model.built, model.unreached) for model in seen.models)
    known = [(built, one) for built, one in called if one is not None and one.num_calls > 1]
    if not known:
        return None
    built, one = known[0]
    is_created = one.num_created >= one.num_calls // 2
    how = "is created again in each call" if is_created else "is kept outside of it, as in a list"
    acts = (
        "it normalises with the statistics of the evaluated batch"
        if one.is_norm
        else "dropout stays active in evaluation"
    )
    return Found(
        evidence=f"{one.layer} was in training mode in {one.num_calls} calls while {built} "
        f"was in evaluation mode: the layer is not registered in {built}, as it {how}, so "
        f"that eval() does not reach it and {acts}",
        fix="Create the layer once in __init__, as an attribute (self.drop = nn.Dropout(0.5)) or "
        "in nn.ModuleList, and call it in forward.",
        where=one.where,
        numbers={"num_calls": one.num_calls},
    )


def _num_let_go(model: ModelSeen, seen: Seen) -> int:
    """Count the calls whose graphs were freed unused, if they occur as validations do.

    That is rarely, and either several at a time or at regular intervals. A skipped step, for
    example because its loss is not finite, occurs alone and at any time.
    """
    steps = [step for step, _ in model.dropped]
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    is_several = sum(num > model.calls_of_a_step for _, num in model.dropped) >= 2
    is_regular = len(steps) >= 3 and len(gaps) == 1
    if not (is_several or is_regular) or len(steps) >= _RARE * seen.num_steps:
        return 0
    return sum(num for _, num in model.dropped)


def _train_mode(where: str | None, num: int) -> Found:
    return Found(
        evidence=f"the model ran {num} times for validation in training mode: dropout is active "
        "and BatchNorm updates its statistics with validation data",
        fix="Call model.eval() before validation and model.train() after it.",
        where=where,
    )


def eval_mode_in_training(seen: Seen) -> Answer:
    """Checks the mode of models in calls that are learned from."""
    models = [m for m in seen.models if m.num_train_mode + m.num_eval_mode]
    if not models:
        return Unseen("no model was trained")
    for model in models:
        acts = model.has_dropout or model.has_batch_norm
        left = model.left_train_mode_at
        if acts and left is not None and model.num_eval_mode >= _MIN_EVAL:
            return Found(
                evidence=f"{model.built} switched to evaluation mode at step {left} and was "
                "trained on in it, so dropout and the updates of BatchNorm statistics are off",
                fix="Call model.train() at the start of each epoch.",
                where=model.called_at,
                numbers={"step": left},
            )
        never = model.num_train_mode == 0 and model.num_eval_mode >= _MIN_EVAL
        if never and (model.fresh_batch_norm or (model.has_dropout and not model.has_batch_norm)):
            what = "BatchNorm" if model.fresh_batch_norm else "dropout"
            return Found(
                evidence=f"{model.built} is trained in evaluation mode, so its {what} is inactive",
                fix="Call model.train() before training.",
                where=model.called_at,
            )
    return Sound("models are trained in training mode")


def gradients_in_validation(seen: Seen) -> Answer:
    """Checks for autograd graphs built in validation, where nothing calls backward."""
    passes = _validations(seen)
    for where, one in passes:
        is_enough = one.is_whole or one.num_batches >= 2
        if is_enough and one.num_with_graph == one.num_forwards:
            return _graphs(where, one.num_forwards)
    for model in seen.models:
        if model.num_idle_graphs >= 2:
            return _graphs(model.idle_graph_at or model.called_at, model.num_idle_graphs)
        num = 0 if passes else _num_let_go(model, seen)
        if num:
            return _graphs(model.dropped_at or model.called_at, num)
    if not passes and not any(m.num_train_without_grad for m in seen.models):
        return _NO_VALIDATION
    return Sound("validation builds no autograd graph")


def _graphs(where: str | None, num: int) -> Found:
    return Found(
        evidence=f"{num} calls of the model in validation recorded operations for a backward pass "
        "that never came, which costs memory and time",
        fix="Put validation under `with torch.inference_mode():`.",
        where=where,
    )


def graph_retained(seen: Seen) -> Answer:
    """Attaches tokens to the graphs of losses and outputs, and counts those alive steps later."""
    if seen.num_backwards == 0:
        return Unseen("backward was not called")
    alive, stepped = seen.num_graphs_alive, [o for o in seen.optimizers if o.num_steps]
    if len(stepped) == 1:  # with several, one may wait for many steps of another
        alive = max(alive, seen.num_outputs_alive)
    if alive >= _MANY_GRAPHS:
        return Found(
            evidence=f"the autograd graphs of {alive} past steps were still in memory: a loss, a "
            "part of it or an output is kept",
            fix="Store loss.item() or loss.detach() instead of the loss; the same for outputs.",
            where=seen.backward_at,
            numbers={"num_alive": alive},
        )
    return Sound("autograd graphs are freed after their step")


def checkpoint_incomplete(seen: Seen) -> Answer:
    """Reads the keys of what torch.save writes, and what a script that resumes takes from it."""
    empty = next((one for one in seen.saved if one.is_empty), None)
    if empty is not None and seen.num_steps:
        return Found(
            evidence="a state_dict() without any weights was saved: the module has no registered "
            "layers",
            fix="Store layers in nn.ModuleList or nn.ModuleDict instead of a list or dict.",
            where=empty.where,
        )
    found = ignored_state(seen) or ignored_plan(seen)
    if found is not None:
        return found
    saved = [one for one in seen.saved if one.has_model]
    if not saved:
        return Unseen("torch.save wrote no model")
    for one in saved:
        lacks = _lacks(one, seen)
        if one.has_position and lacks:
            return Found(
                evidence=f"the checkpoint ({', '.join(one.keys[:6])}) lacks {lacks}: training "
                "cannot be resumed exactly from it",
                fix="Also save the state_dict() of the optimizer, the scheduler and the "
                "GradScaler.",
                where=one.where,
            )
    whole = any(one.has_optimizer for one in saved)
    if not whole:
        return Found(
            evidence="the saved checkpoints contain the weights, but nothing else that is needed "
            "to resume the training",
            fix="To resume training, also save the optimizer, the scheduler, the GradScaler, the "
            "epoch and the step.",
            where=saved[0].where,
            severity=Severity.INFO,
        )
    return Sound("checkpoints contain the optimizer")


def _lacks(one: SavedSeen, seen: Seen) -> str:
    parts = []
    if not one.has_optimizer and seen.optimizers:
        parts.append("the optimizer")
    if one.has_optimizer and not one.has_schedule and seen.schedules:
        parts.append("the scheduler")
    if one.has_optimizer and not one.has_scaler and seen.precision.num_scaled:
        parts.append("the GradScaler")
    return " and ".join(parts)


def seeds_wrong(seen: Seen) -> Answer:
    """Checks that a seed is set exactly once: setting it again, as in workers, repeats draws."""
    if seen.num_steps == 0:
        return Unseen("no optimizer step was seen")
    found = _seeded_for_each(seen)
    if found is not None:
        return found
    for (where, seed), times in seen.reseeded.items():
        if times >= 2:
            return Found(
                evidence=f"torch was seeded with {seed} {times} times during training: dropout, "
                "augmentation and order repeat",
                fix="Set the seed once, before training.",
                where=where,
                severity=Severity.WARNING,
                numbers={"times": times},
            )
    if (found := _restarted_in_workers(seen)) is not None:
        return found
    if not seen.has_seed:
        return Found(
            evidence="no seed was set: the run is not reproducible",
            fix="Call torch.manual_seed(0) at the start of the script.",
        )
    return Sound("a seed was set")


def _seeded_for_each(seen: Seen) -> Found | None:
    """Find a constant seed that is set again for each example, so that all have the same draws."""
    trained = {at: one.dataset for at, one in enumerate(seen.loaders) if one.training}
    for one in seen.seedings:
        is_constant = len(one.values) == 1 and one.num_calls >= _MIN_SEEDED
        if not is_constant or one.num_used < _MIN_USED or one.loader not in trained:
            continue
        return Found(
            evidence=f"while {trained[one.loader]} returned examples, "
            f"{one.function}({one.values[0]}) was called at least {one.num_calls:,} times, always "
            "with this number: its random draws are the same for every example",
            fix="Seed once before training instead of in __getitem__; for fixed draws that differ, "
            "seed with the index.",
            where=one.where,
            severity=Severity.WARNING,
            numbers={"num_calls": one.num_calls},
        )
    return None


def _restarted_in_workers(seen: Seen) -> Found | None:
    """Find draws of workers that begin again in each epoch, if the examples show this."""
    for one in seen.loaders:
        num_epochs = len(one.training)
        is_drawn = one.restarted_draws is not None and (one.ignores_index or one.is_iterable)
        if not is_drawn or not one.begins_alike or num_epochs < _MIN_RESTARTED:
            continue
        return Found(
            evidence=f"{one.restarted_draws} has the same state at the start of each of "
            f"{num_epochs} epochs, when the worker processes of the DataLoader start again: all "
            "epochs that were compared began with the same batch",
            fix="In worker_init_fn, seed it with torch.initial_seed() % 2**32, which differs "
            "between workers and epochs.",
            where=one.restarted_at or one.where,
            severity=Severity.WARNING,
            numbers={"num_epochs": num_epochs},
        )
    return None


def batch_norm_stale(seen: Seen) -> Answer:
    """Checks whether averaged models, such as an EMA, are evaluated with their own statistics.

    Also whether the statistics of BatchNorm are those of hardly more than the last batch.
    """
    for model in seen.models:
        if _OF_LAST_BATCH <= model.norm_momentum < 1 and model.num_train_mode:
            return Found(
                evidence=f"BatchNorm layers of {model.built} have "
                f"momentum={model.norm_momentum:g}, the weight of the newest batch in PyTorch: "
                "their running statistics, with which the model is evaluated, are nearly those of "
                "the last batch",
                fix=f"Pass momentum={1 - model.norm_momentum:.3g}; the default is 0.1. Other "
                "libraries give the weight of the earlier batches.",
                numbers={"momentum": model.norm_momentum},
                severity=Severity.WARNING,
            )
    models = [model for model in seen.models if model.statistics is not None]
    if not models:
        return Unseen("no model with BatchNorm follows the weights of a trained one")
    for model in models:
        one = model.statistics
        assert one is not None
        if not (one.is_initial or one.is_kept or one.is_of_last_weights):
            continue
        if one.is_initial:
            what = "those before any batch (mean 0, variance 1), although its weights were updated"
        elif one.is_kept:
            what = f"unchanged since step {one.first_step}, although its weights were updated"
        else:
            what = "those of the last weights, although its own are an average of many"
        away = f"; means of the trained model are up to {one.distance:.2g} standard deviations away"
        return Found(
            evidence=f"{model.built} was evaluated at step {one.last_step} with BatchNorm "
            f"statistics that are {what}{away if one.distance else ''}",
            fix="Copy the buffers of the trained model as well, or call "
            "torch.optim.swa_utils.update_bn(loader, model) before evaluating.",
            where=one.where,
            numbers={
                "num_evaluations": one.num_evaluations,
                "step": one.last_step,
                "distance": one.distance,
            },
            severity=None if one.is_initial else Severity.WARNING,
        )
    return Sound("BatchNorm statistics of evaluated models were updated with their weights")


def wrong_checkpoint_kept(seen: Seen) -> Answer:
    """Checks whether loaded or saved weights were kept without a copy, and have changed since.

    Also whether a module is given the weights that it has already, as a target network may be.
    """
    if seen.num_steps == 0:
        return Unseen("no optimizer step was seen")
    stale = sorted(seen.stale_states, key=lambda one: not one.is_loaded)
    own = next((one for one in seen.own_states if one.num_times >= _MIN_OWN_LOADS), None)
    if not stale and own is not None:
        return Found(
            evidence=f"load_state_dict gave {own.model} the weights that it had already, after "
            f"{own.num_times} steps: it changed nothing",
            fix="Give it those of the other model, as in target.load_state_dict(net.state_dict()), "
            "or an earlier copy of its own.",
            where=own.where,
            severity=Severity.WARNING,
            numbers={"num_times": own.num_times},
        )
    if not stale:
        return Sound("no weights that were loaded or saved had changed since they were taken")
    one = stale[0]
    taken = f" ({one.taken_at})" if one.taken_at else ""
    how = (
        f"loaded at step {one.step} share the memory of the model's own: they were taken at step "
        f"{one.taken_step}{taken} without a copy, so loading them restores nothing"
        if one.is_loaded
        else f"saved at step {one.step} were taken at step {one.taken_step}{taken} without a copy, "
        f"so the file contains those of step {one.step}"
    )
    return Found(
        evidence=f"the {one.num_tensors} tensors of weights that were {how}",
        fix="Keep a copy: best = copy.deepcopy(model.state_dict()).",
        where=one.where,
        numbers={
            "num_tensors": one.num_tensors,
            "taken_at_step": one.taken_step,
            "step": one.step,
        },
        severity=None if one.is_loaded else Severity.WARNING,
    )


def _validations(seen: Seen) -> list[tuple[str | None, PassSeen]]:
    return [(loader.where, one) for loader in seen.loaders for one in loader.validation]
