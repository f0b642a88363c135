"""Build the parts of a session from a recipe and a task."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from stepladder.config.choices import (
    AsyncMethod,
    Auto,
    DeviceChoice,
    MemoryFormat,
    OrderMode,
    Precision,
    Sampling,
    Split,
    TrainMode,
    Where,
)
from stepladder.config.options import JobConfig
from stepladder.config.recipe import BatchConfig, DataConfig, LoaderConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.data.features.feature_source import FeatureSource
from stepladder.data.order.order_choice import refuse_hosts, resolve_order
from stepladder.data.reading.datasets import as_source
from stepladder.data.reading.examples import RowsOnly
from stepladder.data.reading.reader import Reader, Source, resolve_where
from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.machine import keep_freed_memory, num_cores, return_freed_memory
from stepladder.machine.compiler import compiler_missing
from stepladder.machine.gpu import gpu_of_rank
from stepladder.models.checkpointing import can_checkpoint, set_checkpointing
from stepladder.models.features import evaluating
from stepladder.models.forwards import CompiledForward, FrozenForward, set_forward
from stepladder.models.freezing import set_training
from stepladder.optim.master import MasterWeights, halve_
from stepladder.optim.optimizers import build_optimizer
from stepladder.optim.table import spec_of
from stepladder.parallel.batchnorm import sync_batchnorm
from stepladder.parallel.collectives.exchange import exchange_of, sent_dtype
from stepladder.parallel.divided.contract import DividedModel
from stepladder.parallel.divided.sharding import ShardedModel
from stepladder.parallel.world import ALONE, World
from stepladder.task.blame import exits_told, method_place
from stepladder.task.contract import Task
from stepladder.training.clock import Clock, DeviceTimeline
from stepladder.training.evaluate import EVALUATION_BATCH_SIZE, FEATURE_EVALUATION_BATCH_SIZE
from stepladder.training.features.feature_pass import TrunkPass, num_views
from stepladder.training.gain import gain_meter, require_gain
from stepladder.training.randomness import has_random_layers, random_state_kept, seed_everything
from stepladder.training.stage import Stage, enter_stage, stages_of
from stepladder.training.step import Step, autocast
from stepladder.training.update import Update

MAX_PRODUCTS_OF_ONE_THREAD = 4_000_000  # below about 0.1 ms of work on a core
_OF_PICTURES = "stepladder.task.image_classification"
MEMORY_FORMATS = {
    MemoryFormat.AUTO: torch.contiguous_format,
    MemoryFormat.CONTIGUOUS: torch.contiguous_format,
    MemoryFormat.CHANNELS_LAST: torch.channels_last,
}


def require_execution(
    recipe: Recipe, task: Task, model: nn.Module, *, device: torch.device
) -> None:
    """Check that the model, the stage and the machine support the recipe's options.

    Raises:
        UsageError: if options contradict each other or the model does not support them.
        ResourceError: if there is no compiler.
    """
    if spec_of(recipe.optimizer.name).sees_layers:
        _require_layers(recipe)
    if recipe.model.fold_batchnorm:
        _require_foldable(recipe, task, model)
    if recipe.device.gradient_checkpointing:
        _require_checkpoints(recipe, task, model)
    missing = compiler_missing(device.type) if recipe.device.compile else None
    if missing is not None:
        raise ResourceError(
            f"torch.compile needs {missing}, which is not installed",
            where="device.compile",
            fix="Install it (apt-get install g++), or leave out the option device.compile.",
        )


def set_execution(recipe: Recipe, stage: Stage, task: Task, model: nn.Module) -> None:
    """Fold and compile the model as the recipe says; its tensors and names do not change.

    While the trunk is frozen, it alone is folded and compiled: the head is small, and the trunk's
    code then serves training, validation and features alike. Otherwise the whole model is compiled.
    """
    parts = task.split(model)
    trunk = parts[0] if parts is not None and stage.learns is TrainMode.HEAD else None
    is_compiled = recipe.device.compile
    if parts is not None:
        is_folded = recipe.model.fold_batchnorm
        _set_frozen(parts[0], trunk is not None, is_folded=is_folded, is_compiled=is_compiled)
    set_forward(model, CompiledForward(model) if is_compiled and trunk is None else None)
    if recipe.device.gradient_checkpointing:
        set_checkpointing(model, trunk is None)


def _set_frozen(trunk: nn.Module, is_frozen: bool, *, is_folded: bool, is_compiled: bool) -> None:
    if not (is_frozen and (is_folded or is_compiled)):
        set_forward(trunk, None)
        return
    there = vars(trunk).get("forward")
    wanted = (is_folded, is_compiled)
    if isinstance(there, FrozenForward) and (there.is_folded, there.is_compiled) == wanted:
        return  # keep what it made, such as compiled code
    set_forward(trunk, FrozenForward(trunk, is_folded, is_compiled))


def _require_layers(recipe: Recipe) -> None:
    """Check that an optimizer can see what goes in and out of each layer."""
    device, title = recipe.device, spec_of(recipe.optimizer.name).title
    reasons = {
        "device.compile": (
            device.compile,
            "compiled code does not call hooks",
            "device.no-compile",
        ),
        "device.precision": (
            device.precision in (Precision.FP16, Precision.FP16_MASTER),
            "fp16 scales the gradients that it would see",
            "device.precision bf16",
        ),
        "asynchronous.method": (
            recipe.asynchronous.method is not AsyncMethod.OFF,
            "workers send gradients only",
            "asynchronous.method off",
        ),
    }
    for where, (is_so, why, instead) in reasons.items():
        if is_so:
            raise UsageError(
                f"{title} has to see what goes in and out of each layer: {why}",
                where=where,
                fix=f"Use --{instead}, or another --optimizer.name.",
            )


def _require_foldable(recipe: Recipe, task: Task, model: nn.Module) -> None:
    parts = task.split(model)
    if parts is None:
        raise UsageError(
            "model.fold_batchnorm merges BatchNorm layers into the frozen part of the model (its "
            "trunk), but the Task does not say which part that is",
            where=type(task).__name__,
            fix="Add a method split(model) to the Task that returns (trunk, head), or leave out "
            "the option model.fold_batchnorm.",
        )
    if recipe.train is TrainMode.ALL:
        raise UsageError(
            "model.fold_batchnorm needs a frozen trunk, but here the trunk is trained (train: all)",
            why="Its BatchNorm statistics change with each step, so they cannot be folded.",
            fix="Type --train head, or remove model.fold_batchnorm.",
        )
    if not any(isinstance(module, nn.BatchNorm2d) for module in parts[0].modules()):
        raise UsageError(
            "model.fold_batchnorm has no effect: the trunk has no BatchNorm2d layer",
            fix="Remove model.fold_batchnorm.",
        )


def _require_checkpoints(recipe: Recipe, task: Task, model: nn.Module) -> None:
    if recipe.train is TrainMode.HEAD and task.split(model) is not None:
        raise UsageError(
            "device.gradient_checkpointing has no effect: the trunk is frozen (train: head)",
            why="A frozen trunk keeps no activations for a backward pass.",
            fix="Type --train all, or remove device.gradient_checkpointing.",
        )
    if not can_checkpoint(model):
        raise UsageError(
            f"{type(model).__name__} does not support device.gradient_checkpointing",
            where=type(task).__name__,
            fix="Add a method set_grad_checkpointing(enable) to the model, or remove the option.",
        )
    try:  # a model that cannot do it raises here, before the run writes anything
        set_checkpointing(model, True)
    except (AssertionError, NotImplementedError) as error:
        raise UsageError(
            "device.gradient_checkpointing cannot be turned on for this model: "
            f"set_grad_checkpointing of {type(model).__name__} raised an error ({error})",
            fix="Leave out the option device.gradient_checkpointing.",
        ) from error
    set_checkpointing(model, False)


def open_device(recipe: Recipe, *, local_rank: int = 0) -> torch.device:
    """Return the device of a recipe; on a CPU, freed memory stays with this process if it says so.

    Args:
        recipe: its options of the device are used.
        local_rank: of the processes on this host, each of which uses a GPU of its own.

    Raises:
        ResourceError: if CUDA is requested and not available.
    """
    choice, has_cuda = recipe.device.kind, torch.cuda.is_available()
    if choice is DeviceChoice.CUDA and not has_cuda:
        raise ResourceError(
            "a GPU was requested, but PyTorch finds none on this machine (CUDA is not available)",
            where="device.kind",
            fix="Train on the CPU: --device.kind cpu. If the machine has a GPU, find out what is "
            "missing: stepladder doctor",
        )
    if has_cuda and choice is not DeviceChoice.CPU:
        if local_rank == 0:
            return torch.device("cuda")
        device = gpu_of_rank(local_rank)
        torch.cuda.set_device(device)
        return device
    keep_memory(recipe)
    return torch.device("cpu")


def keep_memory(recipe: Recipe) -> bool:
    """Keep freed memory in this process if the recipe says so, and return whether it is kept."""
    is_kept = recipe.device.keep_freed_memory
    if recipe.device.divides_model and is_kept is not True:
        return_freed_memory()  # else it would keep several times what a part of the model needs
        return False
    return (recipe.auto if isinstance(is_kept, Auto) else is_kept) and keep_freed_memory()


def replica_devices(device: torch.device, num: int) -> list[torch.device]:
    """Return the devices of a process with several copies of the model; the CPU is any number.

    Raises:
        ResourceError: if there are fewer GPUs.
    """
    if device.type != "cuda":
        return [device] * num
    there = torch.cuda.device_count()
    if there < num:
        raise ResourceError(
            f"{num} replicas need {num} GPUs, but this machine has {there}",
            where="device.replicas",
            fix=f"Type --device.replicas {there}, or --device.kind cpu.",
        )
    return [device, *(torch.device("cuda", idx) for idx in range(1, num))]


def make_clock(device: torch.device) -> Clock:
    """Return a clock for a device, with a device timeline on CUDA."""
    return Clock(DeviceTimeline() if device.type == "cuda" else None)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The splits of a task; val and test are optional."""

    train: Source
    val: Source | None
    test: Source | None


def open_sources(task: Task) -> Sources:
    """Read the splits of a task.

    Raises:
        DataError: if the train split is empty.
        UsageError: if the task calls `sys.exit`.
    """
    splits: dict[str, Source | None] = {}
    with exits_told(task):
        for split in Split:
            data = task.data(split)
            source = None if data is None else as_source(data)
            is_empty = source is not None and len(source) == 0
            if split is Split.TRAIN and (source is None or is_empty):
                raise _nothing_to_train_on(task, "no example" if is_empty else "None")
            splits[split.value] = None if is_empty else source
    train = splits["train"]
    assert train is not None
    return Sources(train=train, val=splits["val"], test=splits["test"])


def _nothing_to_train_on(task: Task, given: str) -> DataError:
    """Return the error of a task whose `data` has no training examples."""
    if any(kind.__module__ == _OF_PICTURES for kind in type(task).__mro__):
        where, fix = type(task).__name__, "Prepare pictures first."
        return DataError("the train split is empty", where=where, fix=fix)
    return DataError(
        f"the train split is empty: data(Split.TRAIN) of {type(task).__name__} returned {given}",
        where=method_place(task, "data"),
        fix="Return the training examples: a map-style Dataset, or a split of a Store.",
    )


def resolve_auto(
    job: JobConfig, sources: Sources, *, earlier: JobConfig | None = None, num_hosts: int = 1
) -> JobConfig:
    """Replace `auto` by a fixed choice, which is saved and used by every later attempt.

    Args:
        earlier: the resolved config of an earlier attempt, whose choices are kept.
        num_hosts: hosts among which the files of a far store can be divided.

    Raises:
        UsageError: if the data cannot be divided among hosts, but the config says so.
    """
    data = job.recipe.data
    if earlier is not None:
        data = _as_before(data, earlier.recipe.data)
    refuse_hosts(data, sources.train)
    where = resolve_where(sources.train, data.where, fraction=data.fraction)
    data = resolve_order(replace(data, where=where), sources.train, num_hosts=num_hosts)
    return replace(job, recipe=replace(job.recipe, data=data))


def _as_before(data: DataConfig, earlier: DataConfig) -> DataConfig:
    """Use an earlier attempt's choice for each option that is `auto`."""
    order = earlier.order if data.order is OrderMode.AUTO else data.order
    return replace(
        data,
        where=earlier.where if data.where is Where.AUTO else data.where,
        order=order,
        sample=earlier.sample if data.sample is Sampling.AUTO else data.sample,
        window_rows=data.window_rows or (earlier.window_rows if order is earlier.order else 0),
        hosts=data.hosts or earlier.hosts or 1,
    )


def make_train_reader(recipe: Recipe, source: Source, world: World = ALONE) -> Reader:
    """Return the reader of this rank's part of the training split."""
    return Reader(
        source,
        seed=recipe.seed,
        rank=world.rank,
        world_size=world.size,
        global_batch_size=recipe.batch.global_batch_size,
        mode=recipe.data.order,
        threads=recipe.loader.num_threads,
        prefetch_batches=recipe.loader.prefetch_batches,
        fraction=recipe.data.fraction,
        fraction_seed=recipe.data.seed,
        sample=recipe.data.sample,
        window_rows=recipe.data.window_rows,
        hosts=recipe.data.hosts or 1,
        where=_held(recipe.data.where, source),
    )


def make_held_out_reader(
    source: Source | None,
    batch: BatchConfig,
    loader: LoaderConfig,
    where: Where,
    world: World = ALONE,
    *,
    hosts: int = 1,
) -> Reader | None:
    """Return the reader of this rank's part of a held-out split; None if there is no split.

    It is read in stored order; if its files are divided among hosts, those of each host are.
    """
    if source is None:
        return None
    micro = batch.micro_batch_size or batch.global_batch_size
    is_light = isinstance(source, FeatureSource) and source.is_held
    size = FEATURE_EVALUATION_BATCH_SIZE if is_light else EVALUATION_BATCH_SIZE
    return Reader(
        source,
        seed=0,
        global_batch_size=max(size, micro) * world.size,
        rank=world.rank,
        world_size=world.size,
        mode=OrderMode.SEQUENTIAL,
        threads=loader.num_threads,
        prefetch_batches=loader.prefetch_batches,
        hosts=1 if world.is_alone else max(1, hosts),
        where=_held(where, source),
    )


def _held(where: Where, source: Source) -> Where:
    """Return where examples are held; features are in memory already, and rows alone are not."""
    return Where.STREAM if isinstance(source, (FeatureSource, RowsOnly)) else where


def make_model(recipe: Recipe, task: Task, device: torch.device) -> nn.Module:
    """Build the model on its device, in its memory format and precision, from the recipe's seed.

    Raises:
        UsageError: if the task builds no model, the model does not support the recipe's options,
            or the task itself raises it.
        ResourceError: if it is to be compiled and there is no compiler.
    """
    seed_everything(recipe.seed)
    model = _built(recipe, task).to(device)
    if recipe.device.memory_format is MemoryFormat.CHANNELS_LAST:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.device.precision is Precision.FP16_MASTER:
        halve_(model)
    require_execution(recipe, task, model, device=device)
    set_execution(recipe, stages_of(recipe.train, recipe.batch)[0], task, model)
    return model


def _built(recipe: Recipe, task: Task) -> nn.Module:
    """Return the model that a task builds."""
    with exits_told(task):
        model: object = task.build_model(recipe)
    if isinstance(model, nn.Module):
        return model
    raise UsageError(
        f"build_model of {type(task).__name__} returned {type(model).__name__}, "
        "not a torch.nn.Module",
        where=method_place(task, "build_model"),
        fix="End it with `return model`.",
    )


def make_trunk_pass(
    recipe: Recipe, task: Task, model: nn.Module, *, device: torch.device
) -> TrunkPass:
    """Return the pass of examples through the trunk of a model made by `make_model`."""
    return TrunkPass(
        task=task,
        model=model,
        device=device,
        precision=recipe.device.precision,
        memory_format=MEMORY_FORMATS[recipe.device.memory_format],
        seed=recipe.seed,
        num_views=num_views(recipe.features, task),
    )


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """What changes when a stage begins.

    Attributes:
        divided: the model, if it is divided among the ranks.
    """

    frozen: list[nn.Module]
    update: Update
    step: Step
    divided: DividedModel | None = None


def make_stage_parts(
    recipe: Recipe,
    stage: Stage,
    task: Task,
    model: nn.Module,
    *,
    device: torch.device,
    clock: Clock,
    world: World = ALONE,
    example: Batch | None = None,
    update_type: type[Update] = Update,
) -> StageParts:
    """Freeze the weights that the stage does not train, and make its optimizer and step.

    Args:
        example: of a few examples on the device, in a world of several ranks.
        update_type: what applies gradients.
    """
    require_gain(recipe)
    frozen = enter_stage(stage, task, model)
    set_training(model, frozen)
    set_execution(recipe, stage, task, model)
    if recipe.device.sync_batchnorm:
        sync_batchnorm(model, world, device)
    is_divided = recipe.device.divides_model and not world.is_alone
    has_unused = (
        example is not None  # and not while all gradients would have to fit
        and not is_divided
        and _has_unused(recipe, task, model, example, device)
    )
    divided = _divided(recipe, task, model, world, example, device=device) if is_divided else None
    precision = recipe.device.precision
    has_half = precision in (Precision.FP16, Precision.FP16_MASTER)
    optimizer = build_optimizer(
        recipe.optimizer,
        model,
        lr=stage.lr,
        process_group=None if world.is_alone else dist.group.WORLD,
    )
    master = MasterWeights(optimizer) if precision is Precision.FP16_MASTER else None
    update = update_type(
        optimizer,
        device=device,
        scaler=torch.amp.GradScaler(device.type) if has_half else None,
        clip_norm=recipe.optimizer.clip_norm,
        master=master,
        gradient_dtype=sent_dtype(recipe.device) if world.is_alone else None,
        is_masked=False if divided is not None else None,
        divided=divided,
    )
    step = Step(
        task=task,
        model=model,
        update=update,
        precision=step_precision(recipe, task, model, device),
        device=device,
        clock=clock,
        micro_batch_size=recipe.batch.micro_batch_size,
        seed=recipe.seed,
        is_random=has_random_layers(model),
        threads=1 if _is_small_head(recipe, task, model, device) else None,
        world=world,
        # the graph of a step is recorded in its first backward pass, which must send gradients
        is_static=recipe.device.gradient_checkpointing and not recipe.batch.micro_batch_size,
        has_unused=has_unused,
        is_repeatable=recipe.deterministic,
        exchange=exchange_of(recipe.device, world, is_cuda=device.type == "cuda"),
        devices=replica_devices(device, recipe.device.replicas),
        divided=divided,
        gain=gain_meter(recipe.batch, optimizer, world),
    )
    return StageParts(frozen=frozen, update=update, step=step, divided=divided)


def _divided(
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    world: World,
    example: Batch | None,
    *,
    device: torch.device,
) -> DividedModel:
    """Divide the model among the ranks."""
    config = recipe.device
    if config.tensor_parallel > 1:
        from stepladder.parallel.divided.tensor_parallel import TensorParallelModel

        return TensorParallelModel(model, world, num=config.tensor_parallel, device=device)
    if config.pipeline_stages > 1:
        from stepladder.parallel.divided.pipeline import PipelineModel

        assert example is not None
        return PipelineModel(
            model,
            world,
            num=config.pipeline_stages,
            device=device,
            example=example,
            loss=task.loss,
            autocast=lambda: autocast(device, config.precision),
            schedule=config.pipeline_schedule,
            micro_batches=config.micro_batches,
        )
    return ShardedModel(model, world)


def _has_unused(
    recipe: Recipe, task: Task, model: nn.Module, example: Batch, device: torch.device
) -> bool:
    """Return True if a trained weight gets no gradient from a batch; leaves no trace.

    Frozen running statistics, random states and gradients stay as they are.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with random_state_kept(), evaluating(model), torch.enable_grad():
        with autocast(device, recipe.device.precision):
            result = task.loss(model, example)
        losses = result[0] if isinstance(result, tuple) else result
        grads = torch.autograd.grad(losses.float().sum(), weights, allow_unused=True)
    return any(grad is None for grad in grads)


def step_precision(recipe: Recipe, task: Task, model: nn.Module, device: torch.device) -> Precision:
    """Return the precision of a step: the recipe's, or fp32 for a small head on a CPU."""
    precision = recipe.device.precision
    if precision is Precision.BF16 and _is_small_head(recipe, task, model, device):
        return Precision.FP32
    return precision


def _is_small_head(recipe: Recipe, task: Task, model: nn.Module, device: torch.device) -> bool:
    """Return True if only the head is trained and its step is too small for threads or casts.

    Such a head is trained in one thread, and in fp32 even if the recipe says bf16: only its
    features are bf16.
    """
    if device.type != "cpu" or not task.runs_head_alone:
        return False
    learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return learning * recipe.batch.global_batch_size <= MAX_PRODUCTS_OF_ONE_THREAD


def use_threads(recipe: Recipe) -> int:
    """Set the compute threads of a recipe, and return their number."""
    threads = recipe.device.threads or num_cores()
    torch.set_num_threads(threads)
    return threads
