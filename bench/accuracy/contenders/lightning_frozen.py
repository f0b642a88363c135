"""(b) PyTorch Lightning as commonly written: frozen trunk, early stopping on loss, batch 16.

With --timed-epochs N, only N epochs are timed and the total is extrapolated to the epoch at which
the script would stop. That epoch and its accuracy are found outside of the clock, by training the
head on precomputed features of the frozen trunk, with a different initialization of the head.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bench.accuracy.contenders.contest import (
    accuracy,
    frozen_trunk,
    now,
    parser_of,
    read_pictures,
    report,
    square,
)

import lightning.pytorch as pl  # isort: skip  (after contest: see models/torchvision_shim.py)
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # isort: skip

IMPORTED_AT = now()
NUM_WORKERS = 2
PATIENCE = 3


class Folder(Dataset):
    """Pictures, decoded by Pillow on access."""

    def __init__(self, pictures: list, size: int) -> None:
        self.pictures, self.size = pictures, size

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        pixels = square(self.pictures[row].path, self.size).copy()
        return torch.from_numpy(pixels).permute(2, 0, 1), self.pictures[row].label


class Classifier(pl.LightningModule):
    """A frozen trunk and a linear head."""

    def __init__(self, trunk: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(num_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.trunk(x)
        return self.head(features)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.head.parameters(), lr=1e-3)


def loaders_of(sets: dict[str, Dataset], num_workers: int) -> dict[str, DataLoader]:
    """Return a data loader for each split."""
    return {
        name: DataLoader(rows, batch_size=16, shuffle=name == "train", num_workers=num_workers)
        for name, rows in sets.items()
    }


def fit(
    model: Classifier, loaders: dict[str, DataLoader], out: Path, max_epochs: int
) -> tuple[int, Path]:
    """Train to the end; return the number of epochs and the checkpoint with the best weights."""
    best = ModelCheckpoint(dirpath=out, monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        callbacks=[EarlyStopping("val_loss", patience=PATIENCE), best],
        default_root_dir=out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loaders["train"], loaders["val"])
    return trainer.current_epoch, Path(best.best_model_path)


@torch.no_grad()
def features_of(trunk: nn.Module, loader: DataLoader) -> TensorDataset:
    """Run the trunk once over a split."""
    parts = [(trunk(x), y) for x, y in loader]
    return TensorDataset(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--timed-epochs", type=int, help="number of epochs to time; the total is extrapolated"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    pl.seed_everything(options.seed, verbose=False)
    splits, classes = read_pictures(options.pictures)
    sets = {name: Folder(pictures, options.size) for name, pictures in splits.items()}
    loaders = loaders_of(sets, NUM_WORKERS)
    trunk = frozen_trunk()
    model = Classifier(trunk, trunk.num_features, len(classes))
    ready = now()
    epochs, best = fit(model, loaders, options.out, options.timed_epochs or options.max_epochs)
    seconds, more = now() - IMPORTED_AT, {}
    if options.timed_epochs:
        epoch_s, more = (now() - ready) / epochs, {"timed_epochs": epochs}
        plain = loaders_of(sets, NUM_WORKERS) | {"train": DataLoader(sets["train"], batch_size=16)}
        loaders = loaders_of({name: features_of(trunk, plain[name]) for name in plain}, 0)
        pl.seed_everything(options.seed, verbose=False)
        model = Classifier(nn.Identity(), trunk.num_features, len(classes))
        epochs, best = fit(model, loaders, options.out / "replay", options.max_epochs)
        seconds = ready - IMPORTED_AT + epochs * epoch_s
    model.load_state_dict(torch.load(best, weights_only=True)["state_dict"])
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in loaders["test"]])
    report(
        imported_at=IMPORTED_AT,
        seconds=seconds,
        epochs=epochs,
        test_accuracy=accuracy(logits, [picture.label for picture in splits["test"]]),
        lightning=pl.__version__,
        **more,
    )


if __name__ == "__main__":
    main()
