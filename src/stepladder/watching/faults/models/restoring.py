"""The fault of a state that a checkpoint has, but that is not restored."""

from __future__ import annotations

from stepladder.watching.contract import Found
from stepladder.watching.seen.seen import Seen

_CHANGED = 1.01  # of a learning rate


def ignored_plan(seen: Seen) -> Found | None:
    """Find training that resumes with the optimizer of a checkpoint, but with a new schedule."""
    one = next((p for p in seen.ignored_plans if p.num_taken > 0), None)
    is_used = any(plan.num_stepped for plan in seen.schedules)
    if one is None or not is_used or seen.num_steps <= one.step:
        return None
    return Found(
        evidence=f"the checkpoint read at {one.where} has the state of a scheduler "
        f'("{one.schedule}", after {one.num_taken} steps of it), which the script never takes: '
        "when training resumes, the schedule of the learning rate begins again",
        fix=f'Also call scheduler.load_state_dict({one.name}["{one.schedule}"]).',
        where=one.where,
        numbers={"num_taken": one.num_taken},
    )


def ignored_state(seen: Seen) -> Found | None:
    """Find training that resumes with the weights of a checkpoint, but with a new optimizer."""
    if not seen.ignored_states:
        return None
    one = seen.ignored_states[0]
    plan = f' and of a scheduler ("{one.schedule}")' if one.schedule else ""
    taken = ", ".join(f'"{name}"' for name in one.taken)
    rates = sorted((one.rate, one.rate_now))
    jump = (
        f", and its learning rate is {one.rate_now:.3g} instead of {one.rate:.3g}"
        if rates[1] > _CHANGED * rates[0]
        else ""
    )
    load = "load_state_dict"
    return Found(
        evidence=f"the checkpoint read at {one.read_at} has the state of an optimizer "
        f'("{one.optimizer}"){plan}, but the script takes only {taken} from it: when training '
        f"resumes, {one.kind} starts without its state ({', '.join(one.kept)}){jump}",
        fix=f'Also call optimizer.{load}({one.name}["{one.optimizer}"])'
        + (f' and scheduler.{load}({one.name}["{one.schedule}"]).' if one.schedule else "."),
        where=one.where,
        numbers={"rate": one.rate_now, "saved_rate": one.rate},
    )
