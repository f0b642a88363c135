"""Faults of weights as such: loaded in vain, or frozen while their statistics move."""

from __future__ import annotations

from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.weights import FitSeen, LoadKind, LoadSeen

_MIN_STEPS_APART = 5  # inspected steps at which layers were frozen
_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and of torch.compile


def pretrained_not_loaded(seen: Seen) -> Answer:
    """Counts the names that fit in `load_state_dict`, and compares weights when training begins."""
    if not seen.loads:
        if not seen.num_loads:
            return Unseen("no weights were loaded")
        return Sound("every call of load_state_dict loaded weights")
    one = next((load for load in seen.loads if _is_certain(load)), seen.loads[0])
    return Found(
        evidence=_loaded_nothing(one),
        fix=_how_to_load(one),
        where=one.where,
        numbers=_numbers(one),
        severity=None if _is_certain(one) else Severity.WARNING,
    )


def _is_certain(one: LoadSeen) -> bool:
    is_explained = one.fit is not None or one.shapes is not None
    return one.kind is LoadKind.NAMES or (
        is_explained and one.kind in (LoadKind.EMPTY, LoadKind.OWN)
    )


def _numbers(one: LoadSeen) -> dict[str, Json]:
    would = {} if one.fit is None else {"num_would_fit": one.fit.num}
    given = {"num_given": one.num_given, "num_loaded": one.num_loaded, "num_weights": one.num_own}
    return {**given, **would}


def _loaded_nothing(one: LoadSeen) -> str:
    """Return what was loaded, and why so little, in one sentence."""
    what = {
        LoadKind.NAMES: f"load_state_dict(strict=False) loaded none of {one.num_given} entries "
        f"into {one.model}: none has the name of one of its {one.num_own} weights",
        LoadKind.FEW: f"load_state_dict(strict=False) loaded only {one.num_loaded} of "
        f"{one.num_own} weights of {one.model}",
        LoadKind.EMPTY: f"load_state_dict(strict=False) was given an empty dict, so none of "
        f"{one.num_own} weights of {one.model} was loaded",
        LoadKind.OWN: f"load_state_dict loaded the weights of {one.model} into itself: all "
        f"{one.num_own} were its own",
        LoadKind.UNUSED: f"a file with {one.num_given} weights was read before training, but they "
        f"are in none of the models, such as {one.model}",
    }[one.kind]
    if one.shapes is not None:
        name, given, own = one.shapes
        return f"{what}; {name} is {_size(given)} in what was read, and {_size(own)} in the model"
    fit = one.fit
    if fit is None:
        names = one.given and one.own and one.kind is LoadKind.NAMES
        return f"{what} (such as {one.given} and {one.own})" if names else what
    return f"{what}; {fit.num} of {one.num_own} would fit {_change(fit)}"


def _size(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a number"


def _change(fit: FitSeen) -> str:
    inside = f'in the entry "{fit.entry}"' if fit.entry else ""
    if fit.drop and fit.put:
        how = f'with "{fit.put}" instead of the prefix "{fit.drop}"'
    elif fit.drop:
        how = f'without the prefix "{fit.drop}"'
    else:
        how = f'with the prefix "{fit.put}"' if fit.put else ""
    return " ".join(part for part in (inside, how) if part)


def _how_to_load(one: LoadSeen) -> str:
    """Return what makes most weights fit, in one line."""
    fit = one.fit
    if fit is None:
        return (
            "Load weights of a model with the same layers and sizes, and check the missing_keys "
            "that load_state_dict(strict=False) returns."
        )
    if fit.put in _WRAPPERS and not fit.drop:
        inner = f"model.{fit.put[:-1]}"
        return f"Load the weights before the model is wrapped, or into {inner}, with strict=True."
    state = f'state["{fit.entry}"]' if fit.entry else "state"
    key = f'k.removeprefix("{fit.drop}")' if fit.drop else "k"
    key = f'"{fit.put}" + {key}' if fit.put else key
    entries = state if key == "k" else f"{{{key}: v for k, v in {state}.items()}}"
    rest = (
        "with strict=True"
        if fit.num == one.num_own
        else "and check the missing_keys that load_state_dict returns"
    )
    return f"Load {entries}, {rest}."


def frozen_batch_norm_moves(seen: Seen) -> Answer:
    """Compares the statistics of BatchNorm in training mode behind weights that are all frozen."""
    norms = [one for one in seen.frozen_norms if one.last_step - one.first_step >= _MIN_STEPS_APART]
    if not norms:
        if not seen.num_steps or not any(model.has_batch_norm for model in seen.models):
            return Unseen("no model with BatchNorm was trained")
        return Sound("no BatchNorm of frozen layers was in training mode")
    one = min(norms, key=lambda norm: norm.was_fresh)
    is_one = one.num_layers == 1
    layers = "a BatchNorm layer" if is_one else f"{one.num_layers} BatchNorm layers"
    its = "its" if is_one else "their"
    first = "" if is_one else " of the first one"
    part = f" in {one.name}" if one.name else ""
    return Found(
        evidence=f"{layers} of {one.model}{part} updated {its} statistics in training mode at "
        f"{one.num_looks + 1} inspected steps, though {its} weights and those of earlier layers "
        f"are frozen: the running means{first} moved by {one.shift:.2g} standard deviations from "
        f"step {one.first_step} to {one.last_step}",
        fix=f"Call model.{one.name}.eval() after each model.train()."
        if one.name
        else f"Call eval() on the BatchNorm layers of {one.model} after each train().",
        where=one.where,
        numbers={"num_layers": one.num_layers, "shift": one.shift},
        severity=Severity.INFO if one.was_fresh else None,
    )


def not_frozen(seen: Seen) -> Answer:
    """Reads attributes of trained weights and layers that torch ignores, such as `require_grad`."""
    if not seen.num_steps or not seen.models:
        return Unseen("no model was trained")
    if not seen.misnamed:
        return Sound("no trained weight has an attribute that was meant to freeze it")
    first = seen.misnamed[0]
    some = [one for one in seen.misnamed if one.attribute == first.attribute]
    some = [one for one in some if one.is_module == first.is_module]
    names = ", ".join(one.name for one in some[:4])
    rest = f" and {len(some) - 4} more" if some[4:] else ""
    owners = "modules" if first.is_module else "weights"
    owners = owners[:-1] if len(some) == 1 else owners
    num = sum(one.num_weights for one in some)
    which = "they are" if num > 1 else "it is"
    if first.is_module:
        whose = "their" if some[1:] else "its"
        which = f"{whose} {num} weights are" if num > 1 else f"{whose} weight is"
    return Found(
        evidence=f"{first.attribute} was set to False on {len(some)} {owners} ({names}{rest}), "
        f"which torch ignores: {which} still trained",
        fix="Call module.requires_grad_(False), which freezes all weights of a module."
        if first.is_module
        else "Write weight.requires_grad = False, or module.requires_grad_(False).",
        numbers={"num_weights": num},
    )
