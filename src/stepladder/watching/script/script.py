"""Run a script in this process as Python itself would, and report how it ended."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import io
import os
import runpy
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as pools
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

from stepladder.config.yaml_file import nearest_file
from stepladder.errors import UsageError
from stepladder.watching.script.notebook import SUFFIX, cells_of, is_notebook, run_cells

_HERE = str(Path(__file__).resolve().parents[1])
_GIVE = "Pass the path of a Python file."
_MAX_MESSAGE = 300


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a script ended.

    Attributes:
        exit_code: as a shell would see it.
        words: a short description.
        signal_number: the signal that ended it; 0 if none did.
        crash: type and message of the exception that ended it; None: none did.
        frames: (file, line) of that exception's traceback, innermost last.
    """

    exit_code: int
    words: str
    signal_number: int = 0
    crash: str | None = None
    frames: tuple[tuple[str, int], ...] = ()


def crash_of(error: BaseException, words: str) -> Ending:
    """Return the ending of a script that an exception ended."""
    message = str(error).strip().partition("\n")[0][:_MAX_MESSAGE]
    name = type(error).__name__
    return Ending(
        exit_code=1,
        words=words,
        crash=f"{name}: {message}" if message else name,
        frames=tuple(
            (frame.filename, frame.lineno or 0)
            for frame in traceback.extract_tb(error.__traceback__)
        ),
    )


def find_script(script: str, *, is_module: bool) -> Path:
    """Return the file of a script or a module.

    Raises:
        UsageError: if it does not exist.
    """
    if is_module:
        return _find_module(script)
    path = Path(script)
    if path.is_dir():
        raise UsageError("this is a folder, not a script", where=script, fix=_script_in(path))
    if not path.is_file():
        fix = nearest_file(path, _GIVE)
        raise UsageError("the script does not exist", where=script, fix=fix)
    return path


def refuse_no_python(file: Path, shown: str) -> None:
    """Raise an error for a file that Python cannot compile.

    Args:
        file: as returned by `find_script`.
        shown: its name in the message.

    Raises:
        UsageError: if it is not a Python file; names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when it is run
            if is_notebook(file):
                for cell in cells_of(file):
                    compile(cell.text, f"{shown} cell {cell.number}", "exec", dont_inherit=True)
                return
            with io.open_code(str(file)) as opened:
                compile(opened.read(), str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _no_python(error, shown) from None
    except OSError as error:
        what = f"the script cannot be read ({error.strerror or error})"
        raise UsageError(what, where=shown, fix=_GIVE) from None


def _no_python(error: SyntaxError | ValueError, shown: str) -> UsageError:
    if isinstance(error, SyntaxError) and is_notebook(shown) and error.filename:
        shown = error.filename
    line = error.lineno if isinstance(error, SyntaxError) else None
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    text = error.text if isinstance(error, SyntaxError) else None
    is_python = shown.endswith(".py") or SUFFIX in shown
    other = "Pass the Python script: `python train.py` becomes `stepladder watch train.py`."
    return UsageError(
        f"the script is not a valid Python file: {said}",
        where=f"{shown}:{line}" if line else shown,
        why=f"The line is: {text.strip()[:200]}" if text and text.strip() else None,
        fix="Fix the syntax error on that line." if is_python else other,
    )


def _find_module(name: str) -> Path:
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
    except SyntaxError as error:  # in the package that contains it
        raise _no_python(error, error.filename or name) from None
    except (ImportError, ValueError):
        spec = None
    finally:
        del sys.path[0]
    if spec is not None and spec.origin and spec.origin != "built-in":
        return Path(spec.origin)
    raise UsageError(
        "Python finds no module with this name",
        where=name,
        fix="Pass the name that you would type after `python -m`.",
    )


def _script_in(folder: Path) -> str:
    scripts = sorted(file for file in folder.glob("*.py") if file.is_file())
    named = ", ".join(str(file) for file in scripts[:4])
    return f"Pass a script in it: {named}{' …' if len(scripts) > 4 else ''}." if named else _GIVE


def run_script(
    script: str,
    args: Sequence[str],
    *,
    is_module: bool,
    edit: Callable[[ast.Module], ast.Module] | None = None,
) -> Ending:
    """Run a script or module as `__main__`; exceptions are shown as Python shows them.

    Waits for the threads that it leaves behind, as Python does at exit; pool threads end once
    they have finished their tasks.

    Args:
        edit: changes the tree of a script before it is run; not that of a module or notebook.
    """
    before = set(threading.enumerate())
    ending = _run(script, args, is_module=is_module, edit=edit)
    left = [one for one in threading.enumerate() if one not in before and not one.daemon]
    _end_pools(left)
    for thread in left:
        thread.join()
    return ending


def _end_pools(threads: Sequence[threading.Thread]) -> None:
    """End threads of pools that were not shut down, as `concurrent.futures` does at exit."""
    queues = [pools._threads_queues[one] for one in threads if one in pools._threads_queues]
    if not queues:
        return
    pools._shutdown = True
    try:
        for queue in queues:
            queue.put(None)
        for thread in threads:
            if thread in pools._threads_queues:
                thread.join()
    finally:
        pools._shutdown = False


def _run(
    script: str,
    args: Sequence[str],
    *,
    is_module: bool,
    edit: Callable[[ast.Module], ast.Module] | None,
) -> Ending:
    try:
        if is_module:
            _run_module(script, args)
        else:
            _run_file(script, args, edit)
    except SystemExit as error:
        return _exit_of(error)
    except KeyboardInterrupt as error:
        _show(error)
        return Ending(exit_code=130, words="it was interrupted (Ctrl-C)", signal_number=2)
    except BaseException as error:
        _show(error)
        return crash_of(error, f"it raised {type(error).__name__}")
    return Ending(exit_code=0, words="it ran to completion")


def _run_file(
    script: str, args: Sequence[str], edit: Callable[[ast.Module], ast.Module] | None
) -> None:
    if is_notebook(script):
        _run_notebook(script, args)
        return
    path = str(Path.cwd() / script)  # absolute, as in Python since 3.9
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    main = ModuleType("__main__")
    vars(main).update(
        __file__=path,
        __builtins__=builtins,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __spec__=None,
    )
    with io.open_code(path) as file:
        source: bytes | ast.Module = file.read()
    if edit is not None:
        source = edit(ast.parse(source, path))
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _run_notebook(script: str, args: Sequence[str]) -> None:
    """Run the cells of a notebook; figures are drawn, but not shown, and nothing waits for them."""
    os.environ.setdefault("MPLBACKEND", "agg")
    if sys.excepthook is sys.__excepthook__:  # which shows no lines of cells
        sys.excepthook = traceback.print_exception
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    run_cells(Path(script), vars(main), lambda line: sys.stderr.write(f"{line}\n"))


def _run_module(name: str, args: Sequence[str]) -> None:
    sys.argv = [name, *args]
    sys.path[0] = str(Path.cwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _exit_of(error: SystemExit) -> Ending:
    code = error.code
    if code is None or isinstance(code, int):
        number = int(code or 0) & 0xFF
        if getattr(error, "is_enough", False):
            return Ending(exit_code=0, words="the requested number of steps is done")
        how = "it ran to completion" if number == 0 else f"it exited with code {number}"
        return Ending(exit_code=number, words=how)
    sys.stderr.write(f"{code}\n")
    return crash_of(error, "it exited with a message")


def _show(error: BaseException) -> None:
    """Show an exception through the script's own excepthook, without our frames."""
    kept = _own_frames(error.__traceback__)
    error.__traceback__ = kept
    cause: BaseException | None = error
    for _ in range(8):
        cause = cause.__cause__ or cause.__context__ if cause is not None else None
        if cause is not None:
            cause.__traceback__ = _own_frames(cause.__traceback__)
    try:
        sys.excepthook(type(error), error, kept)
    except Exception:
        traceback.print_exception(type(error), error, kept)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Remove the frames of this package and of runpy from a traceback."""
    frames = []
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith((_HERE, "<frozen runpy>")):
            frames.append(trace)
        trace = trace.tb_next
    below: TracebackType | None = None
    for frame in reversed(frames):
        frame.tb_next = below
        below = frame
    return below


class Ender:
    """Writes a report if SIGTERM or SIGHUP ends the script.

    If the script sets its own handlers, these replace ours.
    """

    def __init__(self, at_end: Callable[[int], None]) -> None:
        self._at_end = at_end
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        self._is_holding = False
        self._held: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal that comes during a block end the process after it."""
        self._is_holding = True
        try:
            yield
        finally:
            self._is_holding = False
            if self._held is not None:
                self._end(self._held, None)

    def __enter__(self) -> Ender:
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._end)
            except ValueError:  # not in the main thread
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._end:
                signal.signal(number, before)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self._is_holding and os.getpid() == self._pid:
            self._held = number
            return
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == self._pid:
            self._at_end(number)
        os.kill(os.getpid(), number)


class Leaver:
    """Writes a report if a script exits without Python's own shutdown.

    That is `os._exit`, and `os.exec…`, which replaces the process.
    """

    def __init__(self, at_end: Callable[[Ending], object]) -> None:
        self._at_end = at_end
        self._pid = os.getpid()
        self._before: dict[str, Any] = {}

    def __enter__(self) -> Leaver:
        self._wrap("_exit", lambda code=0, *_: _left_with(code))
        replaced = Ending(exit_code=0, words="another program replaced it (os.exec)")
        for name in ("execv", "execve"):  # the others call these
            self._wrap(name, lambda *_: replaced)
        return self

    def __exit__(self, *_: object) -> None:
        for name, before in self._before.items():
            setattr(os, name, before)

    def _wrap(self, name: str, ending_of: Callable[..., Ending]) -> None:
        before = self._before[name] = getattr(os, name)

        @functools.wraps(before)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == self._pid:
                self._at_end(ending_of(*args))
            return before(*args, **kwargs)

        setattr(os, name, wrapper)


def _left_with(code: object) -> Ending:
    number = code if isinstance(code, int) else 0
    return Ending(exit_code=number & 0xFF, words=f"it exited with os._exit({number})")


class TorchImport:
    """Calls a function as soon as the script has imported torch.

    Torch reads the environment when it is imported, and a script may set variables before that.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def __enter__(self) -> TorchImport:
        if "torch" in sys.modules:
            self._then()
        else:
            sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find torch as usual, and hook into its loader."""
        del path, target
        if name != "torch":
            return None
        self.__exit__()
        spec = importlib.util.find_spec("torch")
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return spec
        run = loader.exec_module
        then = self._then

        def run_then(module: ModuleType) -> None:
            run(module)
            vars(loader).pop("exec_module", None)
            then()

        loader.exec_module = run_then  # type: ignore[method-assign]
        return spec
