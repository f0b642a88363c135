"""Write checkpoints in a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_MIN_SHARE: Final = 0.02
_SAVED: Final = 0.7
_COPIES: Final = 4  # two that wait, one that is written, and one whose memory is used again
_MAX_MEMORY_FRAC: Final = 0.5
SAVER: Final = '''
class BackgroundSaves:
    """Writes copies of what is saved in a thread; of several for one file, the last."""

    PLAIN = (type(None), bool, int, float, complex, str, bytes)
    MOVES = {
        "os.rename", "os.remove", "os.link", "os.symlink", "os.rmdir", "os.truncate",
        "os.listdir", "os.scandir", "os.fork", "os.exec", "os.system", "os.posix_spawn",
        "subprocess.Popen",
    }

    def __init__(self):
        self.waiting, self.writing, self.errors, self.num_hurried = {}, None, [], 0
        self.spare = []
        self.changed, self.thread = threading.Condition(threading.RLock()), None
        self.pid = os.getpid()
        sys.addaudithook(self.look)
        atexit.register(self.finish)

    def save(self, obj, f, *args, **options):
        if self.errors:
            raise self.errors.pop()
        is_path = isinstance(f, (str, os.PathLike)) and not args and not options
        is_path = is_path and os.getpid() == self.pid  # threads do not survive a fork
        try:
            copied = self.copied(obj, os.path.abspath(f)) if is_path else None
        except Exception:  # such as a tensor within a graph, or too little memory
            is_path = False
        if not is_path:
            self.finish()
            return torch.save(obj, f, *args, **options)
        path = os.path.abspath(f)
        if not os.path.isdir(os.path.dirname(path)):
            torch.save(obj, f)  # which raises
        with self.changed:
            while len(self.waiting) >= 2 and path not in self.waiting:
                self.hurry()
            self.waiting[path] = copied
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, daemon=True)
                self.thread.start()
            self.changed.notify_all()

    def copied(self, obj, path):
        """Copy an object, into the tensors of a copy that is no longer needed if they fit."""
        tensors = self.tensors_in(obj)
        with self.changed:
            _, into = self.waiting.pop(path, (None, None))
            if into is None:
                into, self.spare = self.spare, []
        if [self.look_of(one) for one in into] != [self.look_of(one) for one in tensors]:
            into = [torch.empty_like(one) for one in tensors]
        for one, other in zip(into, tensors):
            one.copy_(other)
        memo = {id(one): other for one, other in zip(tensors, into)}
        return copy.deepcopy(obj, memo), into

    def tensors_in(self, obj):
        """Return tensors that share their memory with no other; none if some may be hidden."""
        waiting, seen, found = [obj], {}, {}
        while waiting:
            one = waiting.pop()
            if isinstance(one, self.PLAIN) or id(one) in seen:
                continue
            seen[id(one)] = one
            if self.is_copied(one):
                found.setdefault(one.untyped_storage().data_ptr(), []).append(one)
            elif isinstance(one, (dict, list, tuple)):
                waiting += one.values() if isinstance(one, dict) else one
            elif type(one).__name__ == "Namespace":  # the arguments
                waiting += vars(one).values()
            else:
                return []
        alone = [ones[0] for ones in found.values() if len(ones) == 1]
        return [one for one in alone if one.untyped_storage().nbytes() == one.nbytes]

    @staticmethod
    def is_copied(one):
        """Return whether `copy_` copies all that there is to a tensor."""
        if type(one) is not torch.Tensor or one.layout is not torch.strided or vars(one):
            return False
        is_special = one.requires_grad or one.is_quantized or one.is_inference()
        return not is_special and not one.is_conj() and not one.is_neg()

    @staticmethod
    def look_of(tensor):
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    def finish(self):
        with self.changed:
            while self.waiting or self.writing is not None:
                self.hurry()
        if self.errors:
            raise self.errors.pop()

    def hurry(self):
        self.num_hurried += 1
        self.changed.notify_all()
        self.changed.wait()
        self.num_hurried -= 1

    def run(self):
        while True:
            with self.changed:
                while not self.waiting:
                    self.changed.wait()
                self.writing = path = next(iter(self.waiting))
                obj, spare = self.waiting.pop(path)
            began = time.perf_counter()
            try:
                torch.save(obj, path)
            except BaseException as error:
                self.errors.append(error)
            del obj
            until = 5 * time.perf_counter() - 4 * began  # at most a fifth of the time
            with self.changed:
                self.writing, self.spare = None, spare
                self.changed.notify_all()
                while not self.num_hurried and (left := until - time.perf_counter()) > 0:
                    self.changed.wait(left)

    def look(self, event, args):
        """Let what opens such a file, or moves files, wait until all are written."""
        if (not self.waiting and self.writing is None) or os.getpid() != self.pid:
            return
        if threading.current_thread() is self.thread:
            return
        if event == "open" and isinstance(args[0], (str, os.PathLike)):
            path = os.path.abspath(args[0])
            if path in self.waiting or path == self.writing:
                self.finish()
        elif event in self.MOVES:
            self.finish()


background_saves = BackgroundSaves()
'''.strip()


class BackgroundSaves(ScriptRung):
    """Write what torch.save is given while training continues.

    What is saved is copied, and a thread writes the copy. Of several for one file that come faster
    than they can be written in a fifth of the time, only the last is written; at the end, all files
    are those that the script would have written.

    Trades: memory for up to three copies. If the process is killed, the newest file is lost.
    """

    name: ClassVar[str] = "background_saves"
    level: ClassVar[int] = 8
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    remark: ClassVar[str] = "files of torch.save are written a moment later"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.background_saves:
            return "already on"
        if facts.save_share < _MIN_SHARE:
            return f"torch.save takes less than {100 * _MIN_SHARE:.0f} % of the time"
        if _COPIES * facts.save_bytes > _MAX_MEMORY_FRAC * facts.memory_bytes:
            return (
                f"copies of {facts.save_bytes / 1e9:.3g} GB take too much of the free memory "
                f"({facts.memory_bytes / 1e9:.3g} GB)"
            )
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict from the share of the time in torch.save."""
        share = min(0.95, facts.save_share)
        return Prediction(
            rung=self.name,
            gain=1 / (1 - _SAVED * share),
            provenance=Provenance.MODELLED,
            inputs={"save_share": share},
            note=f"saves {100 * _SAVED:.0f} % of the time in torch.save; copying takes the rest",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, background_saves=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return a class, and its function in place of torch.save."""
        places = [place for place in facts.save_places if place is not None and place.is_direct]
        if not places or len(places) < len(facts.save_places):
            return "a library saves"
        if len({place.file for place in places}) > 1:
            return "several files save"
        imports = ("atexit", "copy", "os", "sys", "threading", "time", "torch")
        start = Edit(rung=self.name, spot=Spot.START, place=places[0], text=SAVER, imports=imports)
        calls = (
            Edit(rung=self.name, spot=Spot.FUNCTION, place=place, text="background_saves.save")
            for place in places
        )
        return (start, *calls)
