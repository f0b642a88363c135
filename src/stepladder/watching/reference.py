"""Write docs/watch.md from DETECTORS: `python -m stepladder.watching.reference`.

A test compares docs/watch.md with it.
"""

from __future__ import annotations

import inspect
import sys
from typing import Final

from stepladder.records.faults import FAULTS
from stepladder.records.watch import Needs
from stepladder.watching.contract import Detector
from stepladder.watching.detectors import DETECTORS

_HEAD = """# Watching a script

Written from the code by `python -m stepladder.watching.reference > docs/watch.md`.

`stepladder watch train.py -- its args` runs a PyTorch script that knows nothing of us, as
`python train.py its args` would, and then says where a step's time goes, the one next thing that
would make it faster, and what is wrong with it, with the script's own file and line. A script on
Lightning, the Hugging Face Trainer or Accelerate is watched alike: their loops end in the same
calls of torch, and an alarm names the script's line that led there.

```
stepladder watch train.py -- --epochs 2      to its end
stepladder watch --steps 300 train.py        ended after 300 steps of its optimiser, exit code 0
stepladder watch --probe -m package.train    and steps replayed on a copy, at the end
```

As a library: `with stepladder.watch():` around the training. What is printed goes to stderr; stdout
and the exit code are the script's. `watch-NAME/` (or `--out`) gets `watch.html` and `watch.json`.

## What it does to the script

- **Nothing to the results.** On a CPU, in eager mode, they are the same to the bit: no random
  number is drawn, nothing is added to a graph, nothing is synchronised. A test compares weights.
- **Little to the time.** A step that is followed costs some hundred microseconds: wrappers around
  backward, the optimiser's step, the loader and torch's loss functions. The first 64 steps and then
  14 of each 50 are followed; of the others only losses, counts and the wait for data are kept, as
  long as training goes its usual way. A model in evaluation mode or without gradients, a call more
  than a step has, a new epoch or a new optimiser ends that at once. A script with a scaler, with
  closures, with batches cut from one tensor, that learns in evaluation mode, or under `--probe` is
  followed in all its steps: `num_steps_only_counted` in `watch.json` says how it was. Numbers are
  read in the first four steps and in every tenth; hooks are on all modules in one step of fifty,
  and until a loader's first batches have met a model. Where looking came to more than 50 µs a step
  on average (and 15 ms at first), later steps are looked at less, one in a hundred at least. The
  report says what watching took; `bench/watch/overhead.py` measures it.
- **If it fails, it goes.** An error of ours switches the watching off, is told in the report, and
  the script goes on. All wrappers are taken away at the end; forked processes are left alone.
- **Killed scripts.** `watch.json` is written after five seconds and then every five to sixty, the
  rarer the slower steps are, with `"is_complete": false`;
  `stepladder report watch-NAME` makes a page of it. After Ctrl-C, SIGTERM, SIGHUP, `os._exit` and
  `os.exec` there is a whole report. `--steps N` ends the script by `SystemExit`, so that `finally`
  and `atexit` run.
- Torch is imported when the script imports it, not before: what it sets in `os.environ` counts.

## Where a step's time goes

Host times of all steps but the first three: waiting for data, forward and loss (from a step's first
call of a model to backward), backward, the optimiser's step, validation, saving files; what is left
is printed as `unexplained`. Forward, backward and the optimiser's step are timed in the steps that
are followed, and stand for the others.
**Waiting for data is an upper bound** on what the input side costs: on a GPU, work may still be
queued meanwhile. On a GPU, CUDA events of the sampled steps time the work itself; they are read
later. The next step is named with what it can save *at most*; `--probe` measures instead.

## What needs `--probe`

`missing_zero_grad` is the one fault for which looking on may not be enough: it takes five steps,
and one gradient of each optimiser is followed, a dense one of at most 65,536 numbers. With
`--probe` up to 1,024 numbers of every gradient are read in some steps, of sparse and large ones
too: two steps are enough, and weights that are left out where others are cleared are named. The
rest happens after the script's last step, on copies, and its time is reported apart.

- **Gradients.** On a copy of the model, with weights and statistics held, one kept batch is gone
  through five times, with the same random draws and as many backwards as the script takes for a
  step; what the script does to each gradient from step to step is done there too. Cleared gradients
  keep their norm, kept ones grow as 1, 2, 3, 4, 5. A fault that was seen between two steps only, or
  of some weights only, is a warning. Where the script itself makes other gradients of them, as in
  `p.grad.mul_(0.9)`, no fault is told.
- **Times.** On a copy of model and optimiser, steps are taken on up to eight kept batches: as they
  are (what an endlessly fast loader would give), under bfloat16 autocast, laid out as NHWC, and
  with twice the batch. It needs one optimiser. Two runs of each warm up, then all are timed in nine
  rounds, each in the other order, three where they take long. A gain is the median over rounds of
  what both took in the same one, and never more than a change can give: twice the batch can save
  half of a step's own work. Where the rounds disagree it is not known, and says so.

Times need a loss of `torch.nn.functional` that is called on the model's output as it is; gradients
are those of a weighted mean of the outputs where there is no such loss. Both need a model that can
be copied, and one process. What cannot be gone through again is told with its reason. Each takes 20
seconds at most, or a few steps.

## What it finds

Errors are what leaves no doubt; the rest are warnings. What is only worth knowing (info) is in the
report and is no alarm.

"""
_TAIL = """
## Public scripts

What it says of training scripts as others published them, run unmodified, with repository, path and
commit: [public_scripts.md](../bench/results/public_scripts.md).

## What it cannot see

- A schedule or an optimiser that is not torch's, and training loops without
  `torch.optim.Optimizer` or `backward`. Of a loss that the script writes itself, differences and
  cross entropies are read in backward's graph, others are not.
- Layers inside of a compiled model: only the outermost module is looked at.
- Labels that do not belong to their inputs, leaking splits, wrong metrics: `stepladder check` looks
  at a job's data.
- Whether ranks hold the same weights (`ranks_differ`): each process that is watched reports for
  itself.
- The first of several validations without a loader, in training mode and with gradients, where it
  comes after step 64: it is taken for the step's own call, and from the next step's on all steps
  are followed.
- Intentions. Weights that are cut off or not given to the optimiser on purpose look as if by
  accident where they could still learn: hence warnings.
- Where a warning comes from: one that torch gives from a function that is wrapped names our file
  instead of the script's line.
- A model that is pickled by `pickle` itself, not by `torch.save`, while it is watched names a hook
  of ours; it then needs this package to be read.
"""

_NEEDS: Final = {
    Needs.PASSIVE: "looking on",
    Needs.EITHER: "looking on; `--probe` for the rest",
    Needs.PROBE: "`--probe`",
}


def page() -> str:
    """Write the page as Markdown."""
    rows = [
        "| fault | what it is | level | needs | how it tells | source |",
        "|---|---|---|---|---|---|",
        *(_row(detector) for detector in DETECTORS),
    ]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def _row(detector: Detector) -> str:
    title = next(fault.title for fault in FAULTS if fault.name == detector.name)
    doc = inspect.getdoc(detector.look) or ""
    how = " ".join(doc.partition("\n\n")[0].split())
    cells = (
        f"`{detector.name}`",
        title,
        detector.severity,
        _NEEDS[detector.needs],
        how,
        detector.source,
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())
