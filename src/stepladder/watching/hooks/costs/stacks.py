"""Sample the stack of the training thread: which lines of the script take the time of a step."""

from __future__ import annotations

import _thread
import gc
import linecache
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from math import inf, sqrt
from pathlib import Path
from time import perf_counter, thread_time
from types import CodeType, FrameType
from typing import Any, Final

from stepladder.watching.script.filled import function_of
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.stores import nearby
from stepladder.watching.seen.costs import (
    BACKWARD,
    DATA,
    FORWARD,
    HOOK,
    OPTIMIZER,
    OWN,
    SAVE,
    SampleSeen,
    Spot,
    StacksSeen,
)
from stepladder.watching.watcher import Watcher

_FIRST_S: Final = 0.008  # processor time of the first samples
_PER_STEP_S: Final = 12e-6  # and for each step
_OF_STEP: Final = 5e-4  # or this part of its time, if that is more
_MAX_PART: Final = 0.08  # of the time so far, so that no sample outweighs the others
_MIN_INTERVAL_S: Final = 0.002
_MAX_INTERVAL_S: Final = 0.25
_SWITCH_S: Final = 0.0002  # Python's switch interval while other threads wait
_PER_STEP: Final = 8  # samples of a step, as long as they may be taken
_WIDENED: Final = 128  # samples after which they are taken a quarter as often
_MAX_GAP_S: Final = 5.0  # a longer gap is a pause, such as a suspended process
_LATE: Final = 2.0  # times the interval; what is more counts if the thread computed meanwhile
_STILL: Final = 3  # samples in which a thread that waits is at the same place
_MAX_DEPTH: Final = 200
_MAX_SPOTS: Final = 12
_MAX_CALLS: Final = 6
_MAX_STACKS: Final = 4096
_MAX_CODES: Final = 20_000
_MAX_BLOCKS: Final = 32
_MAX_LOOPS: Final = 4
_GOLDEN: Final = (sqrt(5) - 1) / 2  # spreads intervals evenly, so that no period is followed
_HERE: Final = str(Path(__file__).resolve().parents[3])
_SEP: Final = os.sep
_OURS: Final = "ours"
_PARTS: Final = (  # of a path in torch, and what it is a part of
    (f"torch{_SEP}utils{_SEP}data{_SEP}", DATA),
    (f"torch{_SEP}optim{_SEP}", OPTIMIZER),
    (f"torch{_SEP}nn{_SEP}modules{_SEP}", FORWARD),
    (f"torch{_SEP}nn{_SEP}functional.py", FORWARD),
    (f"torch{_SEP}nn{_SEP}parallel{_SEP}", FORWARD),
)
_BACKWARDS: Final = ("backward", "_engine_run_backward", "grad")
_STARTED: list[weakref.ref[StackWatch]] = []


class _Code:
    """What is known about a code object, which it keeps alive."""

    __slots__ = ("code", "is_own", "name", "part")

    def __init__(self, code: CodeType, own: OwnCode) -> None:
        self.code = code
        file = code.co_filename
        self.is_own = own.is_own(file)
        self.name = "" if self.is_own else f"{_short(file)}:{code.co_name}"
        self.part = None if self.is_own else _part_of(file, code.co_name)


def _processor_time_of(thread: int) -> float | None:
    """Return the processor time of the main thread in seconds; None if that is unknown.

    The clock of a thread that has ended must not be read.
    """
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None or thread != threading.main_thread().ident:
        return None
    try:
        return time.clock_gettime(clock_of(thread))
    except OSError:
        return None


def _short(file: str) -> str:
    """Return the path of a library's file from its package on."""
    parts = Path(file).parts
    for name in ("site-packages", "dist-packages"):
        if name in parts:
            at = len(parts) - 1 - parts[::-1].index(name)
            return "/".join(parts[at + 1 :])
    return "/".join(parts[-2:])


def _part_of(file: str, function: str) -> str | None:
    if file.startswith(_HERE):
        return _OURS
    for path, part in _PARTS:
        if path in file:
            return part
    if f"torch{_SEP}autograd{_SEP}" in file or file.endswith(f"torch{_SEP}_tensor.py"):
        return BACKWARD if function in _BACKWARDS else None
    is_saving = file.endswith(f"torch{_SEP}serialization.py") and function in ("save", "_save")
    return SAVE if is_saving else None


def _is_hook(caller: _Code, called: str) -> bool:
    """Return whether a function of the script was called by torch as a hook."""
    is_module = caller.part == FORWARD and caller.code.co_name in ("_call_impl", "inner")
    is_gradient = caller.code.co_name == "_engine_run_backward"
    return (is_module and "forward" not in called) or is_gradient


def _innermost(parts: list[str]) -> str:
    """Return the part of a step, from those of the frames, innermost first.

    What a loader calls is part of loading, and what backward calls of backward; a model that an
    optimizer's closure calls is not part of its step.
    """
    if DATA in parts:
        return DATA
    for part in parts:
        if part != FORWARD:
            is_closure = part == OPTIMIZER and FORWARD in parts
            return FORWARD if is_closure else part
    return FORWARD if parts else OWN


class StackWatch:
    """A thread that reads the training thread's stack now and then.

    The weight of a sample is the time since the one before it. If it comes late, either the line
    that was running let no other thread run, or the whole process waited for a core: only the time
    in which the training thread computed counts then.

    It is started once steps are timed, is not a `threading.Thread`, so that the script does not see
    it, and draws no random numbers. About 8 ms of processor time, and 12 µs or 0.05 % of each
    step, are spent; within a long step, samples become rarer. It ends before a process is forked,
    and is started again by the next step.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._seen: StacksSeen
        self._codes: dict[int, _Code] = {}
        self._stacks: dict[Any, SampleSeen] = {}
        self._spots: dict[tuple[int, int], Spot] = {}
        self._stop: Any = None  # a lock that is held while the thread is to run
        self._ended: Any = None  # one that is held while it runs
        self._num_in_step = 0
        self._others: dict[int, tuple[int, int]] = {}  # where the other threads were
        self._num_still = 0  # samples since one of them was elsewhere
        self._usual_s: float | None = None  # Python's switch interval, while it is another one

    def install(self, watcher: Watcher) -> None:
        """Start with the first step that is timed."""
        self._watcher = watcher
        self._seen = watcher.seen.costs.stacks
        watcher.on_step.append(self._start)
        watcher.patches.on_undo(self.stop)
        _STARTED[:] = [ref for ref in _STARTED if ref() is not None]
        _STARTED.append(weakref.ref(self))

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _start(self) -> None:
        watcher = self._watcher
        if self._stop is not None or not watcher.phases.is_counting or not watcher.switch.is_on:
            return
        if not self._seen.first_step:
            self._seen.first_step = watcher.step
        self._stop, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._stop.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._run, (self._stop, self._ended, watcher.switch.thread))

    def stop(self) -> None:
        """End the thread, and wait until it has."""
        stop, ended = self._stop, self._ended
        self._stop = self._ended = None
        if stop is not None:
            stop.release()
            ended.acquire(timeout=1.0)
            self._switch_as_before()

    def forget(self) -> None:
        """Forget the thread, which does not exist in this process."""
        self._stop = self._ended = None
        self._switch_as_before()

    def _run(self, stop: Any, ended: Any, thread: int) -> None:
        try:
            last, num, used = perf_counter(), 0, _processor_time_of(thread)
            asked = self._interval(num)
            while not stop.acquire(timeout=asked):
                num += 1
                began, now = thread_time(), perf_counter()
                before, used = used, _processor_time_of(thread)
                own_s = inf if used is None or before is None else used - before
                gap = min(now - last, _MAX_GAP_S)
                self._sample(thread, min(gap, max(_LATE * asked, asked + own_s)))
                last, asked = now, self._interval(num)
                self._seen.spent_s += thread_time() - began
        except Exception as error:
            self._watcher.switch.fail(error)
        finally:
            ended.release()

    def _interval(self, num: int) -> float:
        """Return the seconds until the next sample: several per step, fewer once many are taken.

        The time that samples may take is spread evenly: a limit that each step raises would let
        most of them be taken at the beginning of steps.
        """
        phases, seen = self._watcher.phases, self._seen
        step_s = phases.span_s / phases.num_steps if phases.num_steps else 0.0
        least = _MIN_INTERVAL_S * (1 if seen.num < _WIDENED else 4)
        base: float = max(step_s / _PER_STEP, least) * 2 ** (self._num_in_step // _PER_STEP)
        base = min(base, _MAX_INTERVAL_S)
        if seen.spent_s > _FIRST_S:
            may_s = max(_PER_STEP_S, _OF_STEP * step_s)
            rare = seen.spent_s / max(num, 1) * step_s / may_s
            base = max(base, min(rare, _MAX_PART * phases.span_s))
        return min(base, _MAX_GAP_S) * (0.5 + (num * _GOLDEN) % 1.0)

    def _sample(self, thread: int, seconds: float) -> None:
        key, part = self._read(thread)
        if key is None:
            return
        is_validation = self._is_validating() and part != BACKWARD
        one = self._stacks.get((key, is_validation))
        if one is None:
            one = self._add(key, part, is_validation)
        seen, step = self._seen, self._watcher.step
        seen.num += 1
        self._num_in_step = self._num_in_step + 1 if step == seen.last_step else 0
        seen.last_step = step
        one.seconds += seconds
        if not self._watcher.rest.is_on:
            one.followed_s += seconds
            is_open = is_validation or self._watcher.phases.is_in_forward
            one.outside_s += 0.0 if is_open else seconds
        block = step // seen.steps_of_block
        one.by_block[block] = one.by_block.get(block, 0.0) + seconds
        if block >= _MAX_BLOCKS:
            self._halve()

    def _read(self, thread: int) -> tuple[Any, str]:
        """Return what `_walk` does of the training thread, and see whether other threads wait.

        No garbage is collected meanwhile. In Python 3.11 this thread may begin to within the
        functions that return frames. What it deletes may then let the other thread run, whose
        frames are gone when they are read, or wait for a lock that `sys._current_frames` holds
        (CPython's issue 106883).
        """
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            frames = sys._current_frames()
            frame = frames.pop(thread, None)
            frames.pop(_thread.get_ident(), None)
            others = {other: (id(one), one.f_lasti) for other, one in frames.items()}
            self._num_still = self._num_still + 1 if others == self._others else 0
            self._others = others
            self._switch_soon(do_others_wait=not others or self._num_still >= _STILL)
            return (None, "") if frame is None else self._walk(frame)
        finally:
            if is_collecting:
                gc.enable()

    def _switch_soon(self, *, do_others_wait: bool) -> None:
        """Let this thread run soon after it asks to, if no other one is affected by that.

        Otherwise it would run 5 ms later, or as soon as the training thread is in a function that
        lets others run: all of the time would be attributed to these. Threads that are where they
        were at the last samples seem to wait, such as one that draws a progress bar.
        """
        now = sys.getswitchinterval()
        if do_others_wait and self._usual_s is None:
            self._usual_s = now
            sys.setswitchinterval(_SWITCH_S)
        elif not do_others_wait:
            self._switch_as_before()

    def _switch_as_before(self) -> None:
        usual_s, self._usual_s = self._usual_s, None
        if usual_s is not None and abs(sys.getswitchinterval() - _SWITCH_S) < _SWITCH_S / 2:
            sys.setswitchinterval(usual_s)

    def _is_validating(self) -> bool:
        one = self._watcher.current
        if one is not None and one.is_validation and not one.is_whole and not one.num_train_mode:
            return True
        return self._watcher.phases.is_validating

    def _halve(self) -> None:
        """Merge each two blocks of steps."""
        self._seen.steps_of_block *= 2
        for one in self._seen.samples:
            merged: dict[int, float] = {}
            for block, seconds in one.by_block.items():
                merged[block // 2] = merged.get(block // 2, 0.0) + seconds
            one.by_block = merged

    def _walk(self, innermost: FrameType) -> tuple[Any, str]:
        """Return what identifies a stack, and the part of a step that it belongs to."""
        own: list[tuple[int, int]] = []
        calls: list[int] = []
        parts: list[str] = []
        inside = 0  # the script's frames that the loader has called
        is_hook, called = False, ""  # the script's function that the frame has called
        frame: FrameType | None = innermost
        for depth in range(_MAX_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            known = self._codes.get(id(code)) or self._learn(code)
            if known.is_own:
                own.append((id(code), frame.f_lineno or code.co_firstlineno))  # may be None
                called = code.co_name
            elif known.part == _OURS:
                if depth == 0 and code.co_name != "wrapper":
                    return None, ""
            else:
                is_hook = is_hook or (bool(called) and _is_hook(known, called))
                called = ""
                if not own:
                    calls.append(id(code))
                if known.part is not None:
                    parts.append(known.part)
                inside = len(own) if known.part == DATA else inside
            frame = frame.f_back
        part = HOOK if is_hook and DATA not in parts else _innermost(parts)
        own.reverse()
        calls.reverse()
        spots = own if len(own) <= _MAX_SPOTS else own[:4] + own[4 - _MAX_SPOTS :]
        shown = calls[:2] + calls[2:][2 - _MAX_CALLS :]
        return (part, tuple(spots), tuple(shown), inside), part

    def _learn(self, code: CodeType) -> _Code:
        if len(self._codes) >= _MAX_CODES:
            return _Code(code, self._watcher.own)
        known = self._codes[id(code)] = _Code(code, self._watcher.own)
        return known

    def _add(self, key: Any, part: str, is_validation: bool) -> SampleSeen:
        """Add a stack; if there are too many, without its details."""
        _, spots, calls, inside = key
        if len(self._stacks) >= _MAX_STACKS:
            spots, calls, inside = spots[:1], (), 0
            key = (part, spots, calls, inside)
            found = self._stacks.get((key, is_validation))
            if found is not None:
                return found
        one = SampleSeen(
            part=part,
            is_validation=is_validation,
            spots=tuple(self._spot(*spot) for spot in spots),
            calls=tuple(self._codes[call].name for call in calls if call in self._codes),
            num_inside=min(inside, len(spots)),
        )
        self._stacks[(key, is_validation)] = one
        self._seen.samples.append(one)
        return one

    def _spot(self, code_id: int, line: int) -> Spot:
        spot = self._spots.get((code_id, line))
        if spot is None:
            known = self._codes.get(code_id)
            spot = Spot(where="?", function="", text="")
            if known is not None:
                spot = spot_of(self._watcher.own, known.code, line)
            self._spots[(code_id, line)] = spot
        return spot


def spot_of(own: OwnCode, code: CodeType, line: int) -> Spot:
    """Return a line of the script, with the loops that it is in."""
    file = code.co_filename
    lines = linecache.getlines(file)
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    loops: list[str] = []
    indent = _indent(text)
    for above in reversed(lines[max(0, code.co_firstlineno - 1) : line - 1]):
        stripped = above.strip()
        if not stripped or stripped.startswith("#") or _indent(above) >= indent:
            continue
        indent = _indent(above)
        if stripped.startswith(("for ", "while ", "async for ")) and len(loops) < _MAX_LOOPS:
            loops.append(stripped)
    near, line_in_near = nearby(lines, line)
    is_nested = len(loops) + text.lstrip().startswith("for ") > 1
    body, at = function_of(lines, code.co_firstlineno, line) if is_nested else ((), 0)
    return Spot(
        where=f"{own.shown(file)}:{line}",
        function=code.co_name,
        text=text.strip(),
        loops=tuple(loops),
        nearby=near,
        line=line_in_near,
        body=body,
        at=at,
    )


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _stop_all() -> None:
    for ref in _STARTED:
        watch = ref()
        if watch is not None:
            with suppress(Exception):
                watch.stop()


def _forget_all() -> None:
    for ref in _STARTED:
        watch = ref()
        if watch is not None:
            watch.forget()


os.register_at_fork(before=_stop_all, after_in_child=_forget_all)
