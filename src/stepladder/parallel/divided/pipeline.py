"""Let several devices hold the layers of a model one after the other (pipeline parallelism).

Each rank runs the model's own forward, but only its stage of it: what comes before is run on the
meta device, where nothing is computed, and what comes after is not reached. Forward and backward
passes of parts of the batch are ordered by torch's schedules.

Source: Huang et al. 2019, "GPipe", arXiv:1811.06965; Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training", arXiv:2104.04473, section 2.2 (1F1B).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from stepladder.config.choices import PipelineSchedule
from stepladder.data.batch import Batch
from stepladder.errors import UsageError
from stepladder.models.forwards import Replacement, own_forward, set_forward
from stepladder.models.sharded_tensors import set_holder
from stepladder.parallel.divided.choice import PARTS_OF_A_STAGE
from stepladder.parallel.divided.contract import DividedModel, Losses
from stepladder.parallel.divided.cuts import (
    Anatomy,
    Cut,
    anatomy_of,
    choose_cuts,
    stage_of_weights,
    timed,
)
from stepladder.parallel.divided.joint import Groups, Joined, join
from stepladder.parallel.world import World


class _Called(Exception):  # noqa: N818  (not an error: ends a pass early)
    """The model was called."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.inputs = inputs


class _Reached(Exception):  # noqa: N818  (not an error: ends a pass early)
    """The forward pass has reached the end of a stage."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Port(Replacement):
    """Replaces the model's forward: gives a Task an output, or shows what it calls the model with.

    Attributes:
        output: of the pipeline; None: raise what the model is called with.
        is_given: the output has been returned since it was set.
    """

    output: Tensor | None = None
    is_given: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output, or end the call.

        Raises:
            UsageError: if the model is called with anything but one tensor.
        """
        if self.output is not None:
            if self.is_given:
                raise UsageError(
                    "a pipeline runs the model once for a batch, but the Task calls it again",
                    where=type(self.module).__name__,
                    fix="Call the model once, on all inputs together, or use --device.sharded.",
                )
            self.is_given = True
            return self.output
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            raise UsageError(
                f"a pipeline passes one tensor to the model, but the Task calls it with "
                f"{len(args)} arguments and {len(kwargs)} names",
                where=type(self.module).__name__,
                fix="Call the model with one tensor, or use --device.sharded.",
            )
        raise _Called(args[0])


class Stage(nn.Module):
    """The part of a model between two cuts; it has the model's own modules.

    Args:
        begin: where it begins; None: with the model.
        end: where it ends; None: with the model.
        inputs: of the model, for one example: shape and type.
    """

    def __init__(
        self, model: nn.Module, begin: Cut | None, end: Cut | None, inputs: Tensor
    ) -> None:
        super().__init__()
        self._run = own_forward(model)
        self._begin, self._inputs = begin, inputs
        self._received: Tensor | None = None
        self.held = nn.ParameterList(weight for weight in model.parameters() if not weight.is_meta)
        modules = dict(model.named_modules())
        if begin is not None:
            modules[begin.module].register_forward_pre_hook(self._put)
        if end is not None:
            modules[end.module].register_forward_pre_hook(self._take)

    def forward(self, given: Tensor) -> Tensor:
        """Return the stage's output: that of the model, or what the next stage begins with."""
        inputs = given
        if self._begin is not None:
            self._received = given
            inputs = self._inputs.expand(given.shape[0], *self._inputs.shape[1:])
        try:
            output: Tensor = self._run(inputs)
        except _Reached as reached:
            output = reached.hidden
        finally:
            self._received = None
        return output

    def _put(self, module: nn.Module, args: Any) -> Any:  # noqa: ARG002
        return args if self._received is None else (self._received,)

    def _take(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002
        raise _Reached(args[0])


class PipelineModel(DividedModel):
    """A model whose layers are on several ranks, one stage after the other.

    Ranks that hold one copy of the model form a row; rows share every batch, and average their
    gradients.

    Args:
        model: with equal weights on all ranks; those of other stages move to the meta device.
        num: stages.
        example: of the Task, on the device; all ranks have one of the same shape.
        loss: of the Task.
        autocast: context of a forward pass.
        micro_batches: parts of the examples of a row; 0: four for each stage.

    Raises:
        UsageError: if the model cannot be cut, or is called in another way than with one tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        world: World,
        *,
        num: int,
        device: torch.device,
        example: Batch,
        loss: Callable[[nn.Module, Batch], Any],
        autocast: Callable[[], AbstractContextManager[Any]],
        schedule: PipelineSchedule,
        micro_batches: int,
    ) -> None:
        super().__init__(model, world)
        self._groups = Groups(world, num, device)
        self._num, self._device = num, device
        self._schedule, self._micro_batches = schedule, micro_batches
        self._like: Tensor | None = None  # an example as the model gets it
        self._port = Port(model)
        set_forward(model, self._port)
        before = torch.get_rng_state()
        inputs = self._inputs(loss, example)
        if not torch.equal(before, torch.get_rng_state()):
            raise UsageError(
                "loss() of the Task draws random numbers before it calls the model",
                where="device.pipeline_stages",
                why="The first stage and the last one compute them in different processes.",
                fix="Draw them in augment() of the Task, or use --device.sharded.",
            )
        self._like = self._output = torch.empty_like(inputs[:1], device="meta")
        anatomy, self.cuts = self._choose(inputs, autocast)
        self._stages = self._keep_own(anatomy)
        bounds = [None, *self.cuts, None]
        part = self._groups.part
        self._before = bounds[part]
        self._after = bounds[part + 1]
        self._stage = Stage(model, self._before, self._after, self._like)
        self._made: dict[tuple[int, int], Any] = {}

    # -- a step --------------------------------------------------------------------------------

    def losses(self, losses: Losses, batch: Batch, *, weight: float, is_last: bool) -> Any:
        """Return the losses of this rank's examples, after their backward pass; a collective."""
        joined = join(batch, self._groups, is_stand_in=weight == 0)
        weights = self._weights(joined, weight)
        inputs = self._inputs(lambda _, some: losses(some), joined.batch)
        num_parts, size = self._divided(len(inputs))
        rows = torch.arange(num_parts * size).clamp(max=len(inputs) - 1)  # the last one repeated
        weights = torch.cat([weights, weights.new_zeros(len(rows) - len(inputs))])
        found: dict[int, tuple[Tensor, Mapping[str, Tensor]]] = {}

        def loss_of(output: Tensor, numbers: Tensor) -> Tensor:
            places = numbers.cpu()
            first, own = int(places[0]), rows[places]
            values, logs = self._with_output(output, losses, _rows_of(joined.batch, own))
            found[first] = values.detach(), {key: one.detach() for key, one in logs.items()}
            total: Tensor = (values.float() * weights[places].to(values.device)).sum()
            return total

        schedule = self._schedule_of(num_parts, size, loss_of)
        if self._before is None:
            schedule.step(inputs[rows.to(inputs.device)], return_outputs=False)
        elif self._after is None:
            numbers = torch.arange(len(rows), device=self._device)
            schedule.step(target=numbers, losses=[], return_outputs=False)
        else:
            schedule.step(return_outputs=False)
        if is_last and self._groups.num_rows > 1:
            self._average()
        values, logs = self._from_last(_joined_rows(found, len(inputs)))
        own = joined.own(values).to(self._device).requires_grad_()
        return own, {name: one.to(self._device) for name, one in joined.own_logs(logs).items()}

    def metrics(
        self, metrics: Callable[[nn.Module, Batch], Any], batch: Batch, *, is_stand_in: bool
    ) -> Any:
        """Return the metrics of this rank's examples; a collective."""
        joined = join(batch, self._groups, is_stand_in=is_stand_in)
        given = self._inputs(metrics, joined.batch)
        group, part = self._groups.parts.get_group(), self._groups.part
        if self._before is not None:
            given = torch.empty(
                (len(given), *self._before.shape), dtype=self._before.dtype, device=self._device
            )
            dist.recv(given, src=self._groups.rank_of(part - 1), group=group)
        output = self._stage(given)
        found = None
        if self._after is not None:
            dist.send(output.contiguous(), dst=self._groups.rank_of(part + 1), group=group)
        else:
            found = self._with_output(output, lambda some: metrics(self.model, some), joined.batch)
        return joined.own_metrics(self._from_last(found))

    def _inputs(self, loss: Callable[[nn.Module, Batch], Any], batch: Batch) -> Tensor:
        """Return what a Task calls the model with."""
        self._port.output = None
        try:
            loss(self.model, batch)
        except _Called as called:
            given: Tensor = called.inputs
            self._require_shape(given)
            return given
        raise UsageError(
            "a pipeline runs the whole model, but the Task does not call it",
            where=type(self.model).__name__,
            why="It may call parts of the model, such as model.trunk(x).",
            fix="Call model(x) in loss and metrics of the Task, or use --device.sharded.",
        )

    def _require_shape(self, inputs: Tensor) -> None:
        """Check that inputs have the shape and type for which the stages were made.

        Raises:
            UsageError: if not.
        """
        like = self._like
        if like is None or (inputs.shape[1:], inputs.dtype) == (like.shape[1:], like.dtype):
            return
        raise UsageError(
            f"a pipeline passes tensors of one shape from stage to stage, but the model is called "
            f"with {tuple(inputs.shape[1:])} after {tuple(like.shape[1:])}",
            where="device.pipeline_stages",
            fix="Give all examples one shape, in training and validation, or use --device.sharded.",
        )

    def _with_output(self, output: Tensor, call: Callable[[Batch], Any], batch: Batch) -> Any:
        """Return what a Task computes from an output of the model."""
        self._port.output, self._port.is_given = output, False
        try:
            found = call(batch)
        finally:
            self._port.output = None
        is_loss = isinstance(found, Tensor)
        return (found, {}) if is_loss else found

    def _weights(self, joined: Joined, weight: float) -> Tensor:
        """Return the weight of each loss of a row."""
        total = sum(joined.counts)
        own = torch.full((1,), weight, dtype=torch.float64)
        found = [torch.zeros_like(own) for _ in range(self._num)]
        dist.all_gather(found, own, group=self._groups.parts.get_group())
        # the mean over all ranks counts a row as often as it has ranks
        weights = torch.cat(
            [one.expand(num) for one, num in zip(found, joined.counts, strict=True)]
        )
        assert len(weights) == total
        return (weights / self._num).float()

    def _divided(self, num_examples: int) -> tuple[int, int]:
        """Return the number of parts of some examples, and the size of each."""
        wanted = self._micro_batches or PARTS_OF_A_STAGE * self._num
        size = -(-num_examples // wanted)
        num_parts = -(-num_examples // size)
        if self._schedule is PipelineSchedule.ONE_F_ONE_B:
            num_parts = max(num_parts, self._num)  # torch's schedule needs one for each stage
        return num_parts, size

    def _schedule_of(
        self, num_parts: int, size: int, loss_of: Callable[[Tensor, Tensor], Tensor]
    ) -> Any:
        """Return torch's schedule for parts of a size; one is made for each size."""
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        key = num_parts, size
        if key not in self._made:
            stage = PipelineStage(
                self._stage,
                self._groups.part,
                self._num,
                self._device,
                input_args=self._meta(self._before, size),
                output_args=self._meta(self._after, size, is_output=True),
                group=self._groups.parts.get_group(),
            )
            kind = ScheduleGPipe if self._schedule is PipelineSchedule.GPIPE else Schedule1F1B
            calls = _Loss()
            made = kind(stage, num_parts, loss_fn=calls, scale_grads=False)
            self._made[key] = made, calls
        schedule, calls = self._made[key]
        calls.loss_of = loss_of
        return schedule

    def _meta(self, cut: Cut | None, size: int, *, is_output: bool = False) -> Tensor:
        """Return what a stage gets, or gives, for some examples: without it, torch tries them."""
        if cut is not None:
            shape, dtype = cut.shape, cut.dtype
            return torch.empty((size, *shape), dtype=dtype, device="meta", requires_grad=True)
        like = self._output if is_output else self._like
        assert like is not None
        empty = torch.empty((size, *like.shape[1:]), dtype=like.dtype, device="meta")
        return empty.requires_grad_(is_output)

    def _from_last(self, value: Any) -> Any:
        """Return a value of the last stage, on all ranks of this row."""
        box = [value]
        source = self._groups.rank_of(self._num - 1)
        dist.broadcast_object_list(box, src=source, group=self._groups.parts.get_group())
        return box[0]

    def _average(self) -> None:
        """Average the gradients of this stage over all rows."""
        grads = [weight.grad for weight in self._stage.held if weight.grad is not None]
        if not grads:
            return
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat, group=self._groups.data.get_group())
        flat /= self._groups.num_rows
        parts = torch.split(flat, [grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))

    # -- weights and gradients -----------------------------------------------------------------

    def norm(self, grads: list[Tensor]) -> Tensor:
        """Return the norm of all gradients; a collective."""
        own = torch.nn.utils.get_total_norm(grads) if grads else torch.zeros(())
        square = own.to(self._device).float().square().reshape(1)
        dist.all_reduce(square, group=self._groups.parts.get_group())
        return square.sqrt()[0]

    def probe(self, params: list[Tensor]) -> Tensor | float:
        """Return a number that is finite if the gradients of all stages are; a collective."""
        first = next((one.grad for one in params if one.grad is not None), None)
        own = torch.zeros(1, device=self._device)
        if first is not None:
            own += first.sum(dtype=torch.float32)
        dist.all_reduce(own, group=self._groups.parts.get_group())
        return own[0]

    def share_buffers(self, frozen: set[str]) -> None:
        """Use the running statistics of the first row in all rows; a collective."""
        group = self._groups.data.get_group()
        for name, buffer in self.model.named_buffers():
            if name not in frozen and not buffer.is_meta and self._groups.num_rows > 1:
                dist.broadcast(buffer, src=self._groups.part, group=group)

    def mark(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the model that know which rank has them."""
        for name, tensor in tensors.items():
            set_holder(tensor, self._stages.get(name, 0))
        return dict(tensors)

    def complete(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's tensors of all stages, which know which rank has them."""
        part = self._groups.part  # after a resume, counters of other stages are here, too
        own = {
            path: tensor
            for path, tensor in state.items()
            if self._stages[path.rpartition("/")[0]] == part
        }
        kinds = {path: (tuple(tensor.shape), tensor.dtype) for path, tensor in own.items()}
        found: dict[str, Tensor] = {}
        for rank, there in enumerate(self.world.gather(kinds)[: self._num]):  # of the first row
            for path, (shape, dtype) in there.items():
                empty = torch.empty(shape, dtype=dtype, device="meta")
                found[path] = own.get(path, empty).detach()
                set_holder(found[path], rank)
        return found

    def _choose(
        self, inputs: Tensor, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> tuple[Anatomy, list[Cut]]:
        """Return the cuts that rank 0 has chosen by the time that it has measured."""
        model = self.model
        flags = {module: module.training for module in model.modules()}
        model.eval()
        run = own_forward(model)

        def forward() -> Any:
            with torch.no_grad(), autocast():
                return run(inputs)

        try:
            output = forward()
            if not isinstance(output, Tensor) or len(output) != len(inputs):
                raise UsageError(
                    "a pipeline returns one tensor with a row for each example, but the model "
                    f"returns {type(output).__name__}",
                    where=type(model).__name__,
                    fix="Return one tensor, or use --device.sharded.",
                )
            self._output = torch.empty_like(output[:1], device="meta")
            anatomy = anatomy_of(model, forward, num_examples=len(inputs))
            anatomy = timed(model, anatomy, forward)
        finally:
            for module, is_training in flags.items():
                module.training = is_training
        anatomy = self.world.from_main(anatomy)
        return anatomy, choose_cuts(anatomy, self._num)

    def _keep_own(self, anatomy: Anatomy) -> dict[str, int]:
        """Move what other stages hold to the meta device; return the stage of each tensor."""
        model = self.model
        first = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
        tensors = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        of_first = stage_of_weights(anatomy, self.cuts, list(first.values()))
        stages = {name: of_first[first[id(tensor)]] for name, tensor in tensors.items()}
        emptied: dict[int, Tensor] = {}  # a weight that two layers share stays shared
        for name, tensor in tensors.items():
            if stages[name] == self._groups.part:
                continue
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(parent)
            if id(tensor) not in emptied:
                empty = torch.empty_like(tensor, device="meta")
                is_weight = isinstance(tensor, nn.Parameter)
                emptied[id(tensor)] = (
                    nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
                )
            kind = module._parameters if isinstance(tensor, nn.Parameter) else module._buffers
            kind[own] = emptied[id(tensor)]  # type: ignore[assignment]
        return stages


class _Loss:
    """The loss of a part, given its output and the numbers of its rows; replaced in each step."""

    loss_of: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, output: Tensor, numbers: Tensor) -> Tensor:
        return self.loss_of(output, numbers)


def _rows_of(batch: Batch, rows: Tensor) -> Batch:
    """Return some examples of a batch, some perhaps several times."""

    def pick(value: Any) -> Any:
        return value[rows.to(value.device)] if isinstance(value, Tensor) else value

    return Batch(*tree_map(pick, (batch.inputs, batch.targets, batch.ids)))


def _joined_rows(
    found: Mapping[int, tuple[Tensor, Mapping[str, Tensor]]], num: int
) -> tuple[Tensor, dict[str, Tensor]] | None:
    """Return the losses and values of all parts, in order; None: this is not the last stage."""
    if not found:
        return None
    parts = [found[first] for first in sorted(found)]
    losses = torch.cat([values for values, _ in parts])[:num].cpu()
    names = parts[0][1]
    return losses, {key: torch.cat([logs[key] for _, logs in parts])[:num].cpu() for key in names}
