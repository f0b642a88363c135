"""The built-in Task: classification of the images in a store."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.config.choices import ClassWeights, Encoding, Split
from stepladder.config.recipe import Recipe
from stepladder.data.augment.augment import augment, is_augmenting
from stepladder.data.batch import Batch
from stepladder.data.remote.remote_store import open_shard_files
from stepladder.data.store.pixel_copy import pixel_copy
from stepladder.data.store.store import Store, StoreSplit
from stepladder.models.classifier import Classifier, build_classifier
from stepladder.records import Json
from stepladder.task.contract import Metrics, Task

TOP = 5


class ImageClassification(Task):
    """Cross-entropy over the classes of a store.

    Args:
        store: an open Store, or its folder.
        recipe: defines data, loss and augmentation; `build_model` replaces it with its own recipe,
            so that a run's model, loss and augmentation always belong to the same recipe.
        copies: folder for the decoded copy of `data.decode_once`; None: next to the store. The copy
            is made when a split is requested.
    """

    def __init__(
        self,
        store: Store | Path | str,
        recipe: Recipe | None = None,
        *,
        copies: Path | None = None,
    ) -> None:
        self._go_by(recipe or Recipe())
        self.store: Store = store if isinstance(store, Store) else self._open(Path(store))
        self._copies = copies
        self._opened = {(False, self.store.is_scaled): self.store}
        self.classes = tuple(self.store.manifest.classes)

    def as_read_by(self, recipe: Recipe, *, copies: Path | None = None) -> Self:
        """Return a copy of the task, also of a subclass, that reads data as a recipe says.

        Args:
            copies: folder for the decoded copy; None: the one of this task.
        """
        task = copy.copy(self)
        task._go_by(recipe)
        task._copies = copies or self._copies
        task._opened = {form: store for form, store in self._opened.items() if not form[0]}
        return task

    def build_model(self, recipe: Recipe) -> Classifier:
        """Build the recipe's trunk and head, and use this recipe from now on."""
        self._go_by(recipe)
        size = self.store.manifest.size
        return build_classifier(
            recipe.model,
            recipe.head,
            seed=recipe.seed,
            num_classes=len(self.classes),
            image_size=size,
        )

    def data(self, split: Split) -> StoreSplit | None:
        """Return a split of the store, decoded as the recipe says.

        Raises:
            DataError: if an image of a store that is decoded once is damaged.
            ResourceError: if the disk has too little space for its decoded copy.
        """
        return self._as_recipe_says().split(split)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the cross-entropy of each image, and whether the prediction is correct.

        With label smoothing and class weights as in torch's `cross_entropy`, but without dividing
        by the sum of weights: the mean weight over train is already 1. For a mixed image, accuracy
        is the fraction of the predicted class in it.

        Shapes: losses and values are float32 (n,).
        """
        logits = model(batch.inputs).float()  # (n, C)
        targets = batch.targets
        losses = F.cross_entropy(
            logits,
            targets,
            weight=self._weights(logits.device),
            reduction="none",
            label_smoothing=self._loss_config.label_smoothing,
        )
        return losses, {"accuracy": _hits(logits.detach(), targets)}

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return losses, accuracy, top-5 accuracy (for more than 5 classes) and macro accuracy."""
        logits = model(batch.inputs).float()  # (n, C)
        targets = batch.targets
        hits = _hits(logits, targets)
        num_examples = torch.tensor(float(len(targets)), device=logits.device)
        is_class = targets.unsqueeze(1) == torch.arange(len(self.classes), device=logits.device)
        sums = {
            "accuracy": hits.sum(),
            "macro_accuracy": (is_class * hits.unsqueeze(1)).sum(0),  # (C,)
        }
        counts = {"accuracy": num_examples, "macro_accuracy": is_class.sum(0).float()}
        if len(self.classes) > TOP:
            best = logits.topk(TOP, dim=1).indices
            sums["top5_accuracy"] = (best == targets.unsqueeze(1)).sum().float()
            counts["top5_accuracy"] = num_examples
        losses = F.cross_entropy(logits, targets, reduction="none")
        return Metrics(losses=losses, sums=sums, counts=counts, outputs=logits)

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        """Crop, flip, RandAugment and MixUp, as the recipe says."""
        num_classes = len(self.classes)
        return augment(batch, self._augment_config, seed=seed, epoch=epoch, num_classes=num_classes)

    def describe(self) -> Mapping[str, Json]:
        """Return class names, image size and fit, and the store's identity."""
        manifest = self.store.manifest
        return {
            "classes": list(self.classes),
            "size": manifest.size,
            "fit": str(manifest.fit),
            "fingerprint": manifest.fingerprint,
            **(
                {"max_sample_value": manifest.options["max_sample_value"]}
                if "max_sample_value" in manifest.options
                else {}
            ),
        }

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Return (trunk, head)."""
        classifier = cast("Classifier", model)
        return classifier.trunk, classifier.head

    @property
    def is_random_before_head(self) -> bool:
        """Whether augmentation is on."""
        return is_augmenting(self._augment_config)

    def _go_by(self, recipe: Recipe) -> None:
        """Store the parts of a recipe for data, loss and augmentation."""
        self._data_config, self._is_scaled = recipe.data, recipe.loader.scaled_decode
        self._loss_config, self._augment_config = recipe.loss, recipe.augment
        self._class_weights: Tensor | None = None

    def _open(self, folder: Path) -> Store:
        return Store.open(
            folder,
            verify_pages=self._data_config.verify_pages,
            is_scaled=self._is_scaled,
            files=open_shard_files(
                folder,
                cache_dir=self._data_config.cache_dir,
                max_cache_bytes=self._data_config.max_cache_bytes,
                on_message=lambda text: warnings.warn(text, stacklevel=2),
            ),
        )

    def _as_recipe_says(self) -> Store:
        """Return the store, or for a JPEG store the variant that the recipe reads."""
        if self.store.manifest.encoding != Encoding.JPEG:
            return self.store
        once, is_scaled = self._data_config.decode_once, self._is_scaled
        if (False, is_scaled) not in self._opened:
            self._opened[False, is_scaled] = self._open(self.store.path)
        if (once, is_scaled) not in self._opened:
            original = self._opened[False, is_scaled]
            self._opened[once, is_scaled] = pixel_copy(original, folder=self._copies)
        return self._opened[once, is_scaled]

    def _weights(self, device: torch.device) -> Tensor | None:
        if self._loss_config.class_weights is ClassWeights.NONE:
            return None
        if self._class_weights is None or self._class_weights.device != device:
            counts = self.store.manifest.class_counts[Split.TRAIN]
            self._class_weights = balanced_weights(torch.tensor(counts)).to(device)
        return self._class_weights


def balanced_weights(counts: Tensor) -> Tensor:
    """Return class weights inverse to the counts, with a mean of 1 over all examples.

        w_c = N / (C n_c), over the C classes with examples; a class without examples has weight 0.

    Shapes: counts int (C,); weights float32 (C,).
    """
    has_any = counts > 0
    weights = counts.sum() / (has_any.sum() * counts.clamp_min(1).double())
    return torch.where(has_any, weights, 0.0).float()


def _hits(logits: Tensor, targets: Tensor) -> Tensor:
    predicted = logits.argmax(dim=1)
    if targets.dim() == 2:
        return targets.gather(1, predicted.unsqueeze(1)).squeeze(1)
    return (predicted == targets).float()
