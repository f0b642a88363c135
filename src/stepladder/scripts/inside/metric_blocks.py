"""Time lines of the script that compute what only a later `if` uses, and see what they do."""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, Final

from stepladder.records.script import MetricBlock, Place
from stepladder.scripts.metric_lines import MetricLines, metric_lines, timed, why_impure
from stepladder.watching.script.own_code import OwnCode

_NAME: Final = "_stepladder_metrics"
_PROFILED: Final = 3  # executions
_LIBRARIES: Final = {
    *("torch", "numpy", "scipy", "sklearn", "joblib", "threadpoolctl", "pandas", "stepladder"),
    *("torchvision", "typing_extensions"),
}
"""Whose functions only compute what they return."""
_NOT_COMPUTED: Final = {"logging", "multiprocessing", "pickle", "shutil", "socket", "subprocess"}
_BETWEEN_PROCESSES: Final = "distributed_c10d.py"
_PACKAGES: Final = ("site-packages", "dist-packages")
_STANDARD: Final = sysconfig.get_paths()["stdlib"]


@dataclass
class _Seen:
    seconds: float = 0.0
    num: int = 0
    num_used: int = 0
    num_profiled: int = 0
    why_not: str | None = None
    began: float = 0.0
    look: _Look | None = None


class MetricBlocks:
    """Follows such lines of the main file, while training takes steps.

    Args:
        own: distinguishes the script's files.
        file: the script.
    """

    def __init__(self, own: OwnCode, file: Path) -> None:
        self._own = own
        self._file = os.path.realpath(file)
        self._lines: list[MetricLines] = []
        self._seen: list[_Seen] = []
        self._is_training = False
        self._pid = os.getpid()

    def edit(self, tree: ast.Module) -> ast.Module:
        """Return the script with calls around the lines."""
        self._lines = metric_lines(tree)
        if not self._lines:
            return tree
        self._seen = [_Seen() for _ in self._lines]
        setattr(builtins, _NAME, self)
        return timed(tree, _NAME)

    def begin_training(self) -> None:
        """Count from now on."""
        self._is_training = True

    def begin(self, idx: int) -> None:
        """Note that some lines begin."""
        if not self._is_training or os.getpid() != self._pid:
            return
        for other in self._seen:
            if other.look is not None:  # they raised an exception
                other.look.end()
                other.look, other.why_not = None, "an exception ends it"
        seen = self._seen[idx]
        if seen.num_profiled < _PROFILED and seen.why_not is None:
            seen.num_profiled += 1
            seen.look = _Look(self._own)
            seen.look.begin()
        seen.began = perf_counter()

    def end(self, idx: int) -> None:
        """Note that they have ended."""
        seen = self._seen[idx]
        if not seen.began:
            return
        seconds, seen.began = perf_counter() - seen.began, 0.0
        if seen.look is not None:
            seen.why_not = seen.look.end() or seen.why_not
            seen.look = None
        seen.seconds += seconds
        seen.num += 1

    def used(self, idx: int) -> None:
        """Note that the `if` uses them."""
        self._seen[idx].num_used += self._is_training

    def found(self, elapsed_s: float) -> tuple[MetricBlock, ...]:
        """Return the lines that were seen.

        Args:
            elapsed_s: seconds since the first step.
        """
        return tuple(
            MetricBlock(
                place=Place(
                    file=self._file,
                    line=lines.line,
                    column=lines.column,
                    end_line=lines.end_line,
                    end_column=lines.end_column,
                    is_direct=True,
                ),
                num_statements=lines.num,
                first_line=lines.first_line,
                share=min(1.0, seen.seconds / elapsed_s),
                used_share=min(1.0, seen.num_used / seen.num),
                why_not=seen.why_not,
            )
            for lines, seen in zip(self._lines, self._seen, strict=True)
            if seen.num and elapsed_s > 0
        )


@dataclass
class _Look:
    """Sees what lines do while they run once: which functions they call, what they change."""

    own: OwnCode
    why_not: str | None = None
    _codes: dict[CodeType, None] = field(default_factory=dict)  # in order
    _tensors: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin to follow calls."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        from stepladder.scripts.inside.deterministic import RandomStates

        if sys.getprofile() is not None:
            self.why_not = "another profiler runs"
            return
        self._states = RandomStates()
        self._hook = register_module_forward_pre_hook(self._called)
        sys.setprofile(self._profile)

    def end(self) -> str | None:
        """Return what else the lines do than compute; None: nothing was seen."""
        if self.why_not is not None:
            return self.why_not
        sys.setprofile(None)
        self._hook.remove()
        if not self._states.is_unchanged():
            return "it draws random numbers"
        if any(tensor._version != version for tensor, version in self._tensors.values()):
            return "it changes the model, such as running statistics"
        reasons = (self._why_not(code) for code in self._codes)
        return next((one for one in reasons if one is not None), None)

    def _called(self, module: Any, _inputs: Any) -> None:
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            self._tensors.setdefault(id(tensor), (tensor, tensor._version))

    def _profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            self._codes[frame.f_code] = None

    def _why_not(self, code: CodeType) -> str | None:
        """Return what a function that was called does; None: it computes."""
        file = code.co_filename
        if self.own.is_own(file):
            return _why_not_own(code)
        parts = Path(file).parts
        found = [part for part in _PACKAGES if part in parts]
        if _BETWEEN_PROCESSES in parts:
            return "it calls torch.distributed"
        if found:
            name = parts[parts.index(found[0]) + 1].removesuffix(".py")
            return None if name in _LIBRARIES else f"it calls {name}"
        if file.startswith(_STANDARD):
            name = Path(file).relative_to(_STANDARD).parts[0].removesuffix(".py")
            return f"it calls {name}" if name in _NOT_COMPUTED else None
        return None  # made by torch, NumPy or Python, as <frozen importlib>


def _why_not_own(code: CodeType) -> str | None:
    if code.co_name.startswith("<"):  # a part of a function that is seen as well, or a lambda
        return None
    text = "".join(linecache.getlines(code.co_filename))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                why = why_impure(node.body, is_function=True)
                return f"in {node.name}, {why}" if why else None
    return f"the text of {code.co_name} is not known"
