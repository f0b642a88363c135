"""Train a linear head on a frozen trunk with PyTorch Lightning, as such scripts are written.

    python lightning_script.py PICTURES --weights TRUNK.safetensors --out FOLDER

Pictures are PICTURES/{train,val,test}/CLASS/FILE (val may be called validation). They are decoded
by Pillow and pass through the trunk in every epoch. Optimizer, batch size, patience and maximum
number of epochs are the defaults of stepladder. OUT/result.json is written at the end. Needs
lightning and timm, and does not import stepladder. torchvision is only imported because timm and
torchmetrics do.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

try:
    import torchvision  # noqa: F401
except RuntimeError:  # built for another torch: as in stepladder's models/torchvision_shim.py
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import lightning as L  # isort: skip
import timm  # isort: skip
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # isort: skip

TRUNK = "tf_efficientnet_lite0"
SIZE = 224
MEAN, STD = 127.0, 128.0  # of the weights, on the scale of 0 to 255
BATCH_SIZE = 16
NUM_WORKERS = 2
PATIENCE = 3


class ImageFolder(Dataset):
    """Pictures in one folder per class, padded with white to a square."""

    def __init__(self, root: Path) -> None:
        self.classes = sorted(folder.name for folder in root.iterdir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, idx: int) -> tuple[Tensor, int]:
        path, label = self.samples[idx]
        picture = Image.open(path).convert("RGB")
        square = ImageOps.pad(picture, (SIZE, SIZE), color="white")
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)  # (3, h, w)
        return (pixels.float() - MEAN) / STD, label


class Classifier(L.LightningModule):
    """A frozen trunk and a linear head.

    Attributes:
        val_losses: the loss of each validation example, of the current validation.
    """

    def __init__(self, weights: Path, num_classes: int) -> None:
        super().__init__()
        self.trunk = timm.create_model(
            TRUNK, pretrained=True, pretrained_cfg_overlay={"file": str(weights)}, num_classes=0
        )
        self.trunk.requires_grad_(False)
        self.trunk.eval()
        self.head = nn.Linear(self.trunk.num_features, num_classes)
        self.val_losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.trunk(x)
        return self.head(features)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.val_losses.clear()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        self.val_losses.append(losses)
        self.log("val_loss", losses.mean(), prog_bar=True)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("test_accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.NAdam(self.head.parameters(), lr=1e-3)


class EpochTimes(Callback):
    """Seconds of each epoch, with its validation."""

    def __init__(self) -> None:
        self.started = 0.0
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Classifier) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Classifier) -> None:
        self.seconds.append(time.perf_counter() - self.started)


class SameStopping(Callback):
    """Stop by stepladder's default rule, so that both trainings end for the same reason.

    A validation counts against patience if the mean decrease of the losses since the best one, plus
    its standard error, is below a fraction of the best. Lightning's `EarlyStopping` counts each one
    without a decrease, however small the validation set, and may stop several epochs sooner.
    """

    def __init__(self, patience: int = PATIENCE, min_improvement_frac: float = 0.005) -> None:
        self.patience, self.min_improvement_frac = patience, min_improvement_frac
        self.num_without_improvement = 0
        self.best: Tensor | None = None  # (n,)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Classifier) -> None:
        if trainer.sanity_checking:
            return
        losses = torch.cat(pl_module.val_losses).double()
        if self.best is None:
            self.best = losses
            return
        fall = self.best - losses
        hopeful_fall = float(fall.mean() + fall.std() / math.sqrt(len(fall)))
        least = self.min_improvement_frac * float(self.best.mean())
        is_clear = hopeful_fall > 0 and hopeful_fall >= least
        self.num_without_improvement = 0 if is_clear else self.num_without_improvement + 1
        if fall.mean() > 0:
            self.best = losses
        if self.num_without_improvement >= self.patience:
            trainer.should_stop = True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--weights", type=Path, required=True, help="safetensors of the trunk")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-epochs", type=int, default=60)
    parser.add_argument("--own-stopping", action="store_true", help="Lightning's EarlyStopping")
    options = parser.parse_args()

    L.seed_everything(options.seed, workers=True)
    train = ImageFolder(options.pictures / "train")
    val = ImageFolder(next(options.pictures.glob("val*")))
    test = ImageFolder(options.pictures / "test")
    train_loader = DataLoader(train, batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS)
    val_loader = DataLoader(val, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS)
    test_loader = DataLoader(test, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS)

    model = Classifier(options.weights, len(train.classes))
    own, times = EarlyStopping("val_loss", patience=PATIENCE), EpochTimes()
    trainer = L.Trainer(
        max_epochs=options.max_epochs,
        callbacks=[
            own if options.own_stopping else SameStopping(),
            ModelCheckpoint(monitor="val_loss"),
            times,
        ],
        default_root_dir=options.out,
    )
    trainer.fit(model, train_loader, val_loader)
    epochs = trainer.current_epoch
    (metrics,) = trainer.test(dataloaders=test_loader, ckpt_path="best")
    result = {
        "epochs": epochs,
        "epoch_s": times.seconds,
        "test_accuracy": metrics["test_accuracy"],
        "num_test": len(test),
        "versions": {module.__name__: module.__version__ for module in (L, torch, timm)},
    }
    (options.out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
