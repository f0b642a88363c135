"""(b) PyTorch Lightning as people write it: frozen trunk, early stopping on the loss, batch 16."""

from __future__ import annotations

import warnings

import torch
from contest import accuracy, frozen_trunk, now, parser_of, read_pictures, report, square
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import lightning.pytorch as pl  # isort: skip  (after contest: see models/torchvision_shim.py)
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # isort: skip

IMPORTED_AT = now()
NUM_WORKERS = 2
PATIENCE = 3


class Folder(Dataset):
    """Pictures decoded by Pillow whenever they are asked for."""

    def __init__(self, pictures: list, size: int) -> None:
        self.pictures, self.size = pictures, size

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        pixels = square(self.pictures[row].path, self.size).copy()
        return torch.from_numpy(pixels).permute(2, 0, 1), self.pictures[row].label


class Classifier(pl.LightningModule):
    """A frozen trunk and a linear head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.trunk = frozen_trunk()
        self.head = nn.Linear(self.trunk.num_features, num_classes)

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


def main() -> None:
    options = parser_of(__doc__).parse_args()
    warnings.filterwarnings("ignore")
    pl.seed_everything(options.seed, verbose=False)
    splits, classes = read_pictures(options.pictures)
    loaders = {
        name: DataLoader(
            Folder(pictures, options.size),
            batch_size=16,
            shuffle=name == "train",
            num_workers=NUM_WORKERS,
        )
        for name, pictures in splits.items()
    }
    model = Classifier(len(classes))
    best = ModelCheckpoint(dirpath=options.out, monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=options.max_epochs,
        accelerator="cpu",
        callbacks=[EarlyStopping("val_loss", patience=PATIENCE), best],
        default_root_dir=options.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loaders["train"], loaders["val"])
    seconds = now() - IMPORTED_AT
    state = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in loaders["test"]])
    report(
        imported_at=IMPORTED_AT,
        seconds=seconds,
        epochs=trainer.current_epoch,
        test_accuracy=accuracy(logits, [picture.label for picture in splits["test"]]),
        lightning=pl.__version__,
    )


if __name__ == "__main__":
    main()
