"""Write docs/watch.md from DETECTORS: `python -m stepladder.watching.reference`.

A test checks that docs/watch.md is up to date.
"""

from __future__ import annotations

import inspect
import sys
from typing import Final

from stepladder.records.faults import FAULTS
from stepladder.records.watch import Needs
from stepladder.watching.contract import Detector
from stepladder.watching.detectors import DETECTORS
from stepladder.watching.ranks.detectors import RANK_DETECTORS, RankDetector

_HEAD = """# Watching a script

Generated from the code by `python -m stepladder.watching.reference > docs/watch.md`.

`stepladder watch train.py -- its args` runs an unmodified PyTorch script as `python train.py its
args` would, and then reports where the time of a step goes, the next change that would make it
faster, and what is wrong with the training, with file and line of the script. Scripts that use
Lightning, the Hugging Face Trainer or Accelerate work the same way: these call torch too, and a
finding names the line of the script that led to the call.

```
stepladder watch train.py -- --epochs 2      run the script to its end
stepladder watch --steps 300 train.py        stop after 300 optimizer steps, with exit code 0
stepladder watch train.ipynb                 a notebook: its cells are run in turn
stepladder watch --probe -m package.train    and replay steps on a copy at the end
stepladder watch --nproc-per-node 4 train.py four ranks, as with torchrun; one report over all
```

`stepladder watch train.py --baseline watch-train --max-slower 0.1` compares with the report in that
folder, and exits with code 7 if steps became slower by more than that, beyond noise, or if a fault
is new: a step for CI. Times are compared only on the same device, with as many threads and the same
batch size. The new report is in `--out`, or in `watch-train-now`.

In Python: `with stepladder.watch():` around the training. stepladder prints to stderr; stdout and
the exit code are the script's. `watch-NAME/` (or `--out`) receives `watch.html` and `watch.json`.

## How it affects the script

- **Results do not change.** On a CPU, in eager mode, they are bit-identical: watching draws no
  random numbers, adds nothing to the autograd graph and synchronises nothing. A test compares
  weights.
- **Overhead is small.** A step that is followed costs a few hundred microseconds: wrappers around
  backward, the optimizer's step, the loader and torch's loss functions. The first 64 steps and
  then 12 of every 50 are followed; for the others only losses, counts and the wait for data are
  recorded, as long as training proceeds normally. A model in evaluation mode or without gradients,
  an additional call of a model, a new epoch or a new optimizer ends that at once. All steps are
  followed in scripts with a GradScaler, with closures, with batches sliced from one tensor, with
  training in evaluation mode, and under `--probe`: see `num_steps_only_counted` in `watch.json`.
  Values are read in the first four steps and in every tenth; hooks are on all modules in one step
  of fifty, and until the first batches of a loader have reached a model. If inspecting takes more
  than 50 µs per step on average (after the first 15 ms), later steps are inspected less often, but
  at least one in a hundred. The report includes the overhead; `bench/watch/overhead.py` measures
  it.
- **Examples are recognised by a hash** of up to 128 values of each input, computed in the steps
  that are followed and in evaluations, for 12 ms and then 10 µs per step at most. Up to 65,536
  hashes per model are kept; of larger sets, those of a part of the examples. On a GPU they are read
  after the last step. A few hundred rows and their targets are stored as well, at most 1,024 of up
  to 1,024 numbers.
- **Examples in memory are compared** before and after a dataset returns them, in the training
  process: four of up to 24 batches, up to 4,096 values each. Examples that are fetched again are
  compared by a hash, for 6 ms and then 4 µs per step at most.
- **One replay on a copy** follows the script's last step, also without `--probe`: a copy of the
  model that was trained last is called four times with 6 to 14 stored examples, in evaluation mode,
  without gradients and with output discarded. It is left out for models larger than 200 MB, forward
  passes of more than a second, models with hooks of the script, and several processes. For that,
  the model is kept until the script ends. A model of tokens is called about 20 times with up to
  eight stored rows if its targets are the next tokens, to see whether its scores depend on these;
  not if a call takes more than half a second, or if it computes a summary of all tokens, as
  autoencoders do.
- **Operations are followed only if gradients are missing.** If an optimizer steps although none of
  its weights has a gradient, the operations of up to three later steps are intercepted, to name the
  one that cut the graph, such as `argmax()` or `detach()`, with its line. If only some weights have
  none, this is done in two steps, and shows which of them are cut off, are in layers that are not
  called, or belong to layers that were replaced. Whether a backward computes gradients of them that
  are cleared before any step is seen without that. Compiled models, attention in evaluation mode,
  and scripts that are inside a `torch.overrides.TorchFunctionMode` (such as
  `with torch.device(…)`) at the end of the step, are left alone; then no operation is named.
- **Comparisons** of tensors with `==` and `!=` are intercepted in up to six steps, and from calls
  of models in evaluation mode to the next step, 24 times at most. Meanwhile outputs of up to 65,536
  numbers are kept until the model is called again. If a container lists a layer several times, its
  calls are followed with hooks in three steps.
- **Errors of the watcher do not stop the script.** The watcher switches itself off, the report
  includes the error, and the script continues. All wrappers are removed at the end; forked
  processes are not watched.
- **Killed scripts.** `watch.json` is written after five seconds and then every five to sixty
  seconds (less often if steps are slow), with `"is_complete": false`;
  `stepladder report watch-NAME` creates a page from it. After Ctrl-C, SIGTERM, SIGHUP, `os._exit`
  and `os.exec` the report is complete. `--steps N` ends the script with `SystemExit`, so that
  `finally` and `atexit` run.
- Torch is imported when the script imports it, not before, so that environment variables set by the
  script take effect.

## Where a step's time goes

Host times of all steps but the first three: waiting for data, forward and loss (from the first call
of a model in a step to backward), backward, the optimizer's step, validation, saving files, and the
script's other lines between these; the rest is reported as `unexplained`. Forward, backward and the
optimizer's step are timed in the steps that are followed and extrapolated to the others; the share
of other lines is that of samples.
**Waiting for data is an upper bound** on the cost of the input pipeline: on a GPU, work may still
be queued meanwhile. On a GPU, CUDA events of the sampled steps time the work itself; they are read
later.

**Lines** are known from samples: a thread of the watcher reads the stack of the training thread
every 2 ms at first, then less often, for about 8 ms of processor time and 12 µs (or 0.05 %) per
step. Python's switch interval is 0.2 ms meanwhile, if the script's other threads wait. A sample
belongs to the script's innermost line, so a slow function is named by the line in it that takes the
time. Worker processes are not sampled. In up to twelve steps, modules are timed by hooks.

**The next step** is the cause that takes the largest share of the time, with what it can save *at
most*: a change that saves a share s makes a script at most 1 / (1 - s) times as fast. Bounds that a
change often misses by far, such as that of `fused=True`, are ranked as if it saved half. Others
follow in this order, marked with `then`. `--probe` measures some of them instead. From 20 steps
on, or 5 s of them, these causes are named, and recognised in this way:

- `shorter_padding`: all batches have one length, and the ends of sequences are padding in every row
  of a batch.
- `whole_batches`: a module is called on one row of a tensor after another, with the same weights,
  and no call depends on the last one; or a loop of tiny operations goes over the examples of a
  batch.
- `stacked_models`: at least four models of the same shape are trained in turn, each by an optimizer
  of its own, with tiny operations.
- `sparse_pairs`: at least 95 % of the scores of a softmax are masked, or of a constant square
  matrix are zero, and it has at least 256 rows.
- `decoded_once`, `read_once`, `vectorise`, `whole_batches`: the lines of a dataset or collate
  function in the training process: decoding, reading, single values in Python, a TensorDataset one
  example at a time.
- `computed_once`: the same lines, if examples that are fetched again are equal to the last time, no
  random numbers were drawn, and all of them fit into memory.
- `computed_once`, `vectorise`: nested Python loops in the model that set single values, which
  depend on sizes alone, or on more.
- `persistent_workers`, `one_iterator`, `fewer_workers`, `loader_threads`: the wait for the first
  batch and the end of each pass compared with other batches; the number of workers.
- `one_forward`: a module is called again on an input of this step or the last one, without
  gradients or with the same output.
- `cached_features`, `no_unused_gradients`: the time of modules whose weights are frozen and do not
  change, or that no optimizer holds.
- `resize_first`: Pillow rotates, filters or warps images with at least four times the pixels of any
  image that it resizes to.
- `smaller_images`: `interpolate` or Pillow enlarges images, or the pixels of inputs are copies or
  linear between neighbours.
- `whole_sequences`: cells of nn.RNN, nn.LSTM or nn.GRU, or a loop of tiny operations in the model
  or the loss.
- `single_precision`, `no_anomaly_mode`, `no_profiler`, `any_algorithm`: weights in float64, and
  modes of torch.
- `larger_batch`: batches of at most four examples whose operations are tiny.
- `sparse_gradients`: a dense gradient of a large embedding whose step uses at most 5 % of its rows,
  while the others have none, and nothing clips it.
- `flush_denormals`: floats below 1.2e-38 in up to five steps on a CPU, if a product of a sample is
  faster with zeros instead.
- `fused_optimizer`, `foreach`: the time of the optimizer, and loops over weights in Python.
- `fewer_validations`, `fewer_checkpoints`: their time, and how many steps lie between them.
- `removed_hooks`: a layer or a weight has more hooks of one function of the script at each count,
  and these take time.
- `detached_state`, `one_backward`: graphs that `retain_graph=True` keeps contain the last one, and
  become larger from call to call, or from step to step. The first is named if a model is called in
  between, the second if no gradient is cleared in between.
- `allocated_once`: the time of lines that concatenate, such as `self.rows = torch.cat([self.rows,
  row])` in a loop within a step, or any whose share of a step grows.
- `constant_steps`: steps, or the share of a line, become slower with the number of the step.
- `no_sleep`, `memory_cleanup`, `less_printing`, `less_logging`, `fewer_plots`, `fewer_metrics`,
  `fewer_hooks`: what lines outside of the model call.
- `host_reads`, `asynchronous_copies`: lines that wait for a GPU, only where there is one.
- `slow_line`: any other line outside of the model and the loss with 12 % of the time.
- `threads_sleep`: threads that spin while other processes use the cores.

## What needs `--probe`

`missing_zero_grad` is the one fault for which passive watching may not be enough: it takes five
steps, and follows one gradient per optimizer, a dense one with at most 65,536 numbers. With
`--probe` up to 1,024 numbers of every gradient, including sparse and large ones, are read in some
steps: two steps are enough, and weights whose gradients are not cleared while others are can be
named. The rest happens after the script's last step, on copies, and its time is reported
separately.

- **Gradients.** On a copy of the model, with frozen weights and statistics, one stored batch is
  passed through five times, with the same random draws and as many backwards as the script uses
  per step; what the script does to each gradient between steps is repeated there. Cleared gradients
  keep their norm, accumulated ones grow as 1, 2, 3, 4, 5. A fault that was seen between only two
  steps, or for only some weights, is a warning. If the script itself modifies the gradients, as in
  `p.grad.mul_(0.9)`, no fault is reported.
- **Times.** On a copy of model and optimizer, steps are run on up to eight stored batches:
  unchanged (what an infinitely fast loader would give), with bfloat16 autocast, with channels_last
  (NHWC), and with twice the batch size. This requires a single optimizer. After two warm-up runs
  each, all are timed in nine rounds in alternating order, or three rounds if they are slow. A gain
  is the median over rounds of the ratio of both times in the same round, and is limited to what a
  change can give: twice the batch can save at most half of a step's computation. If the rounds
  disagree, the gain is reported as inconclusive.

Times require a loss of `torch.nn.functional` that is called directly on the model's output; without
one, gradients are those of a weighted mean of the outputs. Both require a model that can be copied,
and a single process. If something cannot be replayed, the report gives the reason. Each replay
takes at most 20 seconds, or a few steps.

## What it finds

Errors are certain; other findings are warnings. Findings of level info are in the report but do
not count as faults.

"""
_RANKS = """
## Scripts of several processes

`stepladder watch --nproc-per-node N train.py` starts N ranks on this machine with torchrun, and
prints one report over all of them; `torchrun … -m stepladder watch train.py` does the same with
ranks that torchrun starts, on any number of machines that share the folder. stdout is the script's,
and so is the exit code: with `--nproc-per-node` it is that of the rank that failed first. Each rank
leaves its own report in `watch-NAME/rank-K/`; `watch-NAME/` has that of rank 0, with the findings
of all ranks ("on 2 of 4 ranks: …"), and a table of ranks. DistributedDataParallel, FSDP2 and
libraries that use them, such as Accelerate and Lightning, need nothing else. DataParallel is a
single process, and is watched as one.

- **A rank that dies is the first line of the report**: which one, on which machine, its exception
  and the line. Ranks that fail because they lost the connection to it are not blamed. With
  `--nproc-per-node`, all processes are ended, whatever happens: those that hang are killed 15
  seconds after another one has failed, or after Ctrl-C. Under plain torchrun, rank 0 waits up to 15
  seconds for the reports of the others, and prints what is there.
- **Times by rank**: waiting for data, compute (forward, backward and optimizer), and communication
  alone, which is what DistributedDataParallel's own log calls communication minus its overlap with
  backward. It is read in the first ten iterations and then in every tenth (on a GPU as often as
  torch records it, as that waits for the device). Collectives that the script or a library calls
  itself, such as those of FSDP2, are timed on the host, and only on a CPU: on a GPU they return
  before they are done, so that communication is reported as not measured.
- **Weights** are compared before steps 0, 1, 2, 4, 8, … and every 500th: up to 1,024 values of up
  to 128 tensors. Sharded weights, such as those of FSDP, are not compared.
- Under a launcher that sets neither RANK nor WORLD_SIZE for its first process, such as Lightning's
  own one and `torch.multiprocessing.spawn`, only that process is watched.

What only the comparison of ranks shows:

"""
_TAIL = """
## Public scripts

Results on published training scripts, run unmodified, with repository, path and commit:
[public_scripts.md](../bench/results/public_scripts.md).

## What it cannot see

- Schedulers or optimizers that are not torch's, and training loops without
  `torch.optim.Optimizer` or `backward`. In a loss that the script computes itself, differences and
  cross entropies are recognised in the autograd graph, others are not.
- Layers inside a compiled model: only the outermost module is inspected.
- Wrong metrics, except for batch means that are divided by the number of examples or of which the
  last is that of a few, a class that is chosen from a single output, and predictions that
  broadcasting compares with all labels (in torch, not in NumPy).
- Masks that are transformed in another way than their pictures, except for flips, in pictures that
  a map-style dataset returns with one mask of the same size.
- Splits that share near-duplicates or groups: `stepladder check` inspects the data of a job.
  Leaking examples are recognised only if loaders share indices of one dataset, or if examples are
  equal, such as without augmentation, and not by chance: with at least four values, or 20 tokens
  of a text.
- Arrays of NumPy that are reshaped instead of transposed, and tensors of which copies are made
  before a model receives them, unless these copies have the shape of the rest.
- Labels that do not belong to their inputs, if the model remembers the examples before the end of
  the first epoch, or if the inputs are images or sequences and the loss falls later.
- Examples that a dataset changes in place, or seeds for each example, in worker processes; inputs
  of evaluations that neither come from a loader nor have held-out names such as `x_test`.
- Masks of padding that hide a part of the real tokens, or are applied after the softmax; later
  tokens that a model sees in packed sequences, or whose encoder and decoder are called separately.
- Which of several columns determine a target together, and a label in images or sequences.
- Buffers that differ between ranks, and weights that are sharded or belong to parts of a model on
  different ranks.
- The first of several validations without a loader, in training mode and with gradients, if it
  comes after step 64: it is taken for the step's own call. All later steps are followed.
- Weights that were read from a file and lost on the way without `load_state_dict`, unless the
  script reads them with `torch.load`, before its first step, and their names differ from the
  model's by a prefix.
- Lost updates of optimizers that are not torch's: these may round at random, or keep precise copies
  of the weights.
- Intentions. Weights that are frozen or left out of the optimizer on purpose look the same as by
  accident if they could still learn: these findings are therefore warnings.
- Where a warning comes from: a warning raised by torch in a wrapped function names a file of
  stepladder instead of the script's line.
- A model that is pickled with `pickle` instead of `torch.save` while it is watched contains a
  reference to a stepladder hook, and can be loaded only if stepladder is installed.
"""

_NEEDS: Final = {
    Needs.PASSIVE: "watching",
    Needs.EITHER: "watching; `--probe` for the rest",
    Needs.PROBE: "`--probe`",
}


def page() -> str:
    """Return the page as Markdown."""
    rows = [
        "| fault | what it is | level | needs | how it is detected | source |",
        "|---|---|---|---|---|---|",
        *(_row(detector) for detector in DETECTORS),
    ]
    over = [
        "| fault | what it is | level | how it is detected | source |",
        "|---|---|---|---|---|",
        *(_row_of_ranks(detector) for detector in RANK_DETECTORS),
    ]
    return _HEAD + "\n".join(rows) + "\n" + _RANKS + "\n".join(over) + "\n" + _TAIL


def _row(detector: Detector) -> str:
    needs = _NEEDS[detector.needs]
    how = _how(detector)
    return _cells(detector.name, detector.severity, needs, how, detector.source)


def _row_of_ranks(detector: RankDetector) -> str:
    return _cells(detector.name, detector.severity, _how(detector), detector.source)


def _how(detector: Detector | RankDetector) -> str:
    doc = inspect.getdoc(detector.look) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def _cells(name: str, *others: str) -> str:
    title = next(fault.title for fault in FAULTS if fault.name == name)
    cells = (f"`{name}`", title, *others)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())
