"""Small tasks for runs of several ranks: digits-like arrays, cheap models of every kind."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.config.choices import Split
from stepladder.config.recipe import AugmentConfig, Recipe
from stepladder.data.augment.augment import augment
from stepladder.data.batch import Batch
from stepladder.data.store.store import Store
from stepladder.errors import DataError, DivergedError, UsageError
from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.world import World
from stepladder.task.contract import Metrics, Task

NUM_CLASSES = 3
SIZES = {Split.TRAIN: 37, Split.VAL: 11, Split.TEST: 7}  # none is a multiple of 2, 3 or 4


def examples(split: Split, num: int) -> TensorDataset:
    """Return pictures whose class is where they are bright."""
    generator = torch.Generator().manual_seed(len(split.value) * 1000 + num)
    targets = torch.arange(num) % NUM_CLASSES
    pictures = torch.rand((num, 3, 8, 8), generator=generator)
    for idx, target in enumerate(targets.tolist()):
        pictures[idx, target] += 0.5
    return TensorDataset(pictures, targets)


class Trunk(nn.Module):
    """Two convolutions, with BatchNorm if wanted."""

    def __init__(self, *, has_norm: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(8) if has_norm else nn.Identity()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            norm,
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, stride=2),
            nn.ReLU(),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Return features (n, 8)."""
        features: Tensor = self.layers(pictures).mean(dim=(2, 3))
        return features


class Net(nn.Module):
    """A trunk and a linear head."""

    def __init__(self, *, has_norm: bool, has_idle: bool) -> None:
        super().__init__()
        self.trunk = Trunk(has_norm=has_norm)
        self.head = nn.Linear(8, NUM_CLASSES)
        if has_idle:
            self.idle = nn.Linear(4, 4)  # trained, but never used

    def forward(self, pictures: Tensor) -> Tensor:
        """Return scores (n, NUM_CLASSES)."""
        scores: Tensor = self.head(self.trunk(pictures))
        return scores


class Plain(Task):
    """Classes by brightness."""

    has_norm = False
    has_idle = False

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model."""
        return Net(has_norm=self.has_norm, has_idle=self.has_idle)

    def data(self, split: Split) -> Any:
        """Return the arrays of a split."""
        return examples(split, SIZES[split])

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the cross-entropy of each example."""
        scores = model(batch.inputs)
        hits = (scores.argmax(dim=1) == batch.targets).float()
        return F.cross_entropy(scores, batch.targets, reduction="none"), {"accuracy": hits}

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return losses, accuracy and scores."""
        scores = model(batch.inputs)
        hits = (scores.argmax(dim=1) == batch.targets).float()
        losses = F.cross_entropy(scores, batch.targets, reduction="none")
        count = torch.tensor(float(len(hits)))
        return Metrics(
            losses=losses, sums={"accuracy": hits.sum()}, counts={"accuracy": count}, outputs=scores
        )

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        """Return trunk and head."""
        assert isinstance(model, Net)
        return model.trunk, model.head

    @property
    def is_random_before_head(self) -> bool:
        """Nothing is."""
        return False


class WithNorm(Plain):
    """With BatchNorm in the trunk."""

    has_norm = True


class WithIdle(Plain):
    """With weights that get no gradient."""

    has_idle = True

    def split(self, model: nn.Module) -> None:
        """Return None: the model cannot be split."""
        return


class Tied(Plain):
    """With one weight under two names."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model, whose head has a second name."""
        model = Net(has_norm=False, has_idle=False)
        model.again = nn.Linear(8, NUM_CLASSES)
        model.again.weight = model.head.weight
        model.again.bias = model.head.bias
        return model

    def split(self, model: nn.Module) -> None:
        """Return None: the model cannot be split."""
        return


class Masked(Plain):
    """With buffers that never change, and that float32 cannot hold."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model with a mask, a large number, and digits of float64."""
        model = Net(has_norm=False, has_idle=False)
        model.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        model.register_buffer("table", torch.tensor([2**24 + 1, 3]))
        model.register_buffer("digits", torch.tensor([0.1], dtype=torch.float64))
        return model


class NanGradient(Plain):
    """A loss that is finite, with a gradient that is not."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the losses, plus the square root of zero."""
        losses, logs = super().loss(model, batch)
        assert isinstance(model, Net)
        return losses + (model.head.weight.sum() * 0).abs().sqrt(), logs


class Mixing(Plain):
    """With MixUp of pictures and their targets."""

    def data(self, split: Split) -> Any:
        """Return pictures of bytes."""
        pictures, targets = examples(split, SIZES[split]).tensors
        return TensorDataset((pictures * 150).to(torch.uint8), targets)

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        """Mix pictures of the batch."""
        config = AugmentConfig(mixup_alpha=0.4)
        return augment(batch, config, seed=seed, epoch=epoch, num_classes=NUM_CLASSES)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy with the shares of the classes, or with classes."""
        scores = model(batch.inputs.float() / 150)
        return F.cross_entropy(scores, batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return the losses."""
        return Metrics(losses=self.loss(model, batch))

    @property
    def is_random_before_head(self) -> bool:
        """MixUp is."""
        return True


class OfStore(Plain):
    """Pictures of the store in the environment variable STORE."""

    store: Store | None = None

    def data(self, split: Split) -> Any:
        """Return a split of the store."""
        if self.store is None:
            self.store = Store.open(Path(os.environ["STORE"]))
        return self.store.split(split)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the cross-entropy of pictures of bytes."""
        return super().loss(model, Batch(batch.inputs.float() / 255, batch.targets, batch.ids))

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return losses, accuracy and scores of pictures of bytes."""
        return super().metrics(model, Batch(batch.inputs.float() / 255, batch.targets, batch.ids))


class Breaks(Plain):
    """Raises on rank 1 at the third batch."""

    num = 0

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Raise on rank 1."""
        import os

        self.num += 1
        if os.environ.get("RANK") == "1" and self.num == 3:
            raise ValueError("the third batch of rank 1")
        return super().loss(model, batch)


class Ends(Breaks):
    """Ends the process of rank 1 at its first batch."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """End, on rank 1."""
        if os.environ.get("RANK") == "1":
            sys.stderr.write("the last words\n")
            sys.stderr.flush()
            os._exit(7)
        time.sleep(0.1)
        return Plain.loss(self, model, batch)


class OutOfMemory(Breaks):
    """Asks torch's allocator on rank 1 for more memory than the process may have."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Run out of memory at the third batch of rank 1."""
        self.num += 1
        if os.environ.get("RANK") == "1" and self.num == 3:
            resource.setrlimit(resource.RLIMIT_AS, (2**36, resource.RLIM_INFINITY))
            torch.empty(2**37, dtype=torch.uint8)
        return Plain.loss(self, model, batch)


class OwnFullDisk(Breaks):
    """Rank 1 cannot write a file of its own at the third batch, as on a disk that is full."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Limit the size of the files that rank 1 may write, and write a larger one."""
        self.num += 1
        if os.environ.get("RANK") == "1" and self.num == 3:
            limit = int(os.environ.get("LIMIT_BYTES", "65536"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            (Path(os.environ["SCRATCH"]) / "features").write_bytes(bytes(limit + 1))
        return Plain.loss(self, model, batch)


class NotFinite(Breaks):
    """Has an infinite loss on rank 1 at the third batch."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return losses, infinite ones at the third batch of rank 1."""
        self.num += 1
        losses, logs = Plain.loss(self, model, batch)
        is_bad = os.environ.get("RANK") == "1" and self.num == 3
        return losses * (float("inf") if is_bad else 1.0), logs


class TwoExamples(Plain):
    """Has two training examples."""

    def data(self, split: Split) -> Any:
        """Return the arrays of a split."""
        return examples(split, 2 if split is Split.TRAIN else SIZES[split])


class OneHeldOut(Plain):
    """Has one example for validation and one for the test, so that other ranks get none."""

    def data(self, split: Split) -> Any:
        """Return the arrays of a split."""
        return examples(split, SIZES[split] if split is Split.TRAIN else 1)


class Waiting(Plain):
    """A step whose time is that of a wait for each example, so that devices divide it exactly."""

    example_s = 0.004

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example, after a wait."""
        time.sleep(self.example_s * len(batch.ids))
        return super().loss(model, batch)


class OfFeatures(Waiting):
    """A step that refuses pictures while the head trains on stored features."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example of stored features."""
        is_of_features = batch.inputs.dim() == 2 and isinstance(model, nn.Linear)
        if len(batch.ids) > 1 and not is_of_features:  # the shapes are found with one picture
            raise ValueError(f"a step of the head received inputs of {tuple(batch.inputs.shape)}")
        return super().loss(model, batch)


class Gated(Plain):
    """Slow steps until the file HURRY exists; rank 0 writes each number of ranks into SIZES."""

    has_begun = False

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example."""
        if not self.has_begun and os.environ["RANK"] == "0":
            with Path(os.environ["SIZES"]).open("a") as file:
                file.write(os.environ["WORLD_SIZE"] + "\n")
        self.has_begun = True
        if not Path(os.environ["HURRY"]).exists():
            time.sleep(0.2)
        return super().loss(model, batch)


class WaitingLonger(Waiting):
    """Waits so long that what several processes do besides is little, on a busy machine too."""

    example_s = 0.02


class WaitingSteps(Waiting):
    """A step waits a fixed time besides, so that fewer and larger steps are faster."""

    step_s = 0.02

    def data(self, split: Split) -> Any:
        """Return as many training examples as a larger batch needs."""
        return examples(split, 4 * SIZES[split] if split is Split.TRAIN else SIZES[split])

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example, after a wait."""
        time.sleep(self.step_s)
        return super().loss(model, batch)


class UnreadableOnRank1(Plain):
    """Data that rank 1 cannot read, as on a machine that lacks a mount."""

    def data(self, split: Split) -> Any:
        """Raise on rank 1."""
        if os.environ.get("RANK") == "1":
            raise DataError("the folder does not exist", where="/data", fix="Mount it.")
        return super().data(split)


class OtherOnRank1(Plain):
    """Data with one example more on rank 1."""

    def data(self, split: Split) -> Any:
        """Return the examples of a split."""
        return examples(split, SIZES[split] + (os.environ.get("RANK") == "1"))


class SlowRank(Plain):
    """A step that waits on rank 1, as on a device that is slower than the others."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example; rank 1 waits first."""
        if dist.is_initialized() and dist.get_rank() == 1:
            time.sleep(0.06)
        return super().loss(model, batch)


class _SlowExamples(Dataset[Any]):
    """Examples that take long to read."""

    def __init__(self, split: Split) -> None:
        self._examples = examples(split, SIZES[split])

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, idx: int) -> Any:
        time.sleep(0.02)
        return self._examples[idx]


class SlowReading(Plain):
    """Examples that take long to read."""

    def data(self, split: Split) -> Any:
        """Return the examples of a split."""
        return _SlowExamples(split)


class HeavyGradients(Plain):
    """Many weights for little arithmetic: a row of a large table is added to the scores."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model, with a table whose gradient is sent whole."""
        model = Net(has_norm=False, has_idle=False)
        model.table = nn.Embedding(4_000_000, NUM_CLASSES)
        nn.init.zeros_(model.table.weight)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss of each example."""
        assert isinstance(model.table, nn.Module)
        scores = model(batch.inputs) + model.table(batch.targets)
        return F.cross_entropy(scores, batch.targets, reduction="none")

    def split(self, model: nn.Module) -> None:
        """Return None: the model cannot be split."""
        return


class Answering:
    """A member of a team, for the tests of teams."""

    def __init__(self, world: World, *, fails_at: int | None = None) -> None:
        if world.rank == fails_at:
            raise UsageError("this one cannot start", fix="Leave it out.")
        self._world = world

    def add_up(self, number: float) -> tuple[int, float]:
        """Return the rank, and the sum over all ranks of `number` times the rank."""
        total = self._world.sum_(torch.tensor([number * self._world.rank]))
        return self._world.rank, float(total)

    def kill(self, rank: int) -> None:
        """End one process without a word; the others wait for it."""
        if self._world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        self._world.barrier()

    def diverge(self) -> None:
        """Fail as a step with a loss that is not finite does."""
        raise DivergedError("the loss is not finite", fix="Lower the learning rate.")

    def fail(self) -> None:
        """Fail with an error of another library."""
        raise ZeroDivisionError("a batch without examples")


class Blocks(Plain):
    """Classes by brightness, by a small ViT of timm."""

    has_bias = True

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model."""
        timm = import_timm()
        return timm.models.VisionTransformer(
            img_size=8,
            patch_size=4,
            num_classes=NUM_CLASSES,
            embed_dim=16,
            depth=3,
            num_heads=4,
            qkv_bias=self.has_bias,  # the gradient of that of k is nothing but rounding
        )

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        """Return None: there is no head."""
        return None


class BlocksWithoutBias(Blocks):
    """The same, for optimizers that make small gradients large."""

    has_bias = False


class SomeFrozen(BlocksWithoutBias):
    """The same; the first block is not trained."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model."""
        model = super().build_model(recipe)
        model.blocks[0].requires_grad_(False)
        return model


class WithDropout(Blocks):
    """The same, with dropout in the MLPs."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model."""
        model = super().build_model(recipe)
        for block in model.blocks:
            block.mlp.drop1.p = 0.1
        return model


class Skips(Plain):
    """A model that uses its input again at the end."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model."""
        return Skipping()

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        """Return None: there is no head."""
        return None


class Skipping(nn.Module):
    """Two layers, whose output is added to the input of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 192))
        self.head = nn.Linear(192, NUM_CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return scores (n, NUM_CLASSES)."""
        flat = pictures.flatten(1)
        scores: Tensor = self.head(self.layers(flat) + flat)
        return scores


class BlocksWithNorm(Plain):
    """A chain of convolutions with BatchNorm, whose statistics differ between parts of a batch."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Return the model."""
        blocks = [
            nn.Sequential(nn.Conv2d(3 if idx == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8))
            for idx in range(3)
        ]
        end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES))
        return nn.Sequential(*blocks, *end)

    def data(self, split: Split) -> Any:
        """Return the arrays of a split; the last batch of 8 is full."""
        return examples(split, 32 if split is Split.TRAIN else SIZES[split])

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        """Return None: there is no head."""
        return None


class CalledTwice(Blocks):
    """A loss that calls the model for each half of the pictures."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of the sum of both."""
        scores = model(batch.inputs) + model(batch.inputs.flip(3))
        return F.cross_entropy(scores, batch.targets, reduction="none")


class RandomInLoss(Blocks):
    """A loss that adds noise to its pictures."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of noisy pictures."""
        scores = model(batch.inputs + 0.1 * torch.rand_like(batch.inputs))
        return F.cross_entropy(scores, batch.targets, reduction="none")
