"""(b2) What an expert writes in an hour: precomputed features, channels-last, bf16, a head."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from bench.accuracy.contenders.contest import (
    accuracy,
    frozen_trunk,
    now,
    parser_of,
    read_pictures,
    report,
)

IMPORTED_AT = now()
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
HAS_BF16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def decode(path: object, size: int) -> np.ndarray:
    """Call `thumbnail` first, which lets Pillow ask libjpeg for a smaller decode."""
    picture = Image.open(path)
    picture.thumbnail((size, size), Image.Resampling.BILINEAR)
    whole = Image.new("RGB", (size, size), "white")
    whole.paste(picture.convert("RGB"), ((size - picture.width) // 2, (size - picture.height) // 2))
    return np.asarray(whole)


@torch.no_grad()
def features_of(trunk: nn.Module, pictures: list, size: int, pool: ThreadPoolExecutor) -> Tensor:
    batches = []
    for start in range(0, len(pictures), 32):
        part = pictures[start : start + 32]
        pixels = np.stack(list(pool.map(lambda picture: decode(picture.path, size), part)))
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # already NHWC in memory
        with torch.autocast("cpu", torch.bfloat16, enabled=HAS_BF16):
            batches.append(trunk(x).float())
    return torch.cat(batches)


def main() -> None:
    options = parser_of(__doc__).parse_args()
    torch.manual_seed(options.seed)
    splits, classes = read_pictures(options.pictures)
    labels = {name: torch.tensor([p.label for p in part]) for name, part in splits.items()}
    trunk = frozen_trunk().to(memory_format=torch.channels_last)
    with ThreadPoolExecutor(CORES) as pool:
        x, val_x = (features_of(trunk, splits[k], options.size, pool) for k in ("train", "val"))
        head = nn.Linear(trunk.num_features, len(classes))
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
        best, since, epochs = float("inf"), 0, 0
        while since < 3 and epochs < options.max_epochs:
            for rows in torch.randperm(len(x)).split(16):
                loss = F.cross_entropy(head(x[rows]), labels["train"][rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                val_loss = float(F.cross_entropy(head(val_x), labels["val"]))
            epochs, since = epochs + 1, since + 1
            if val_loss < best:
                best, since = val_loss, 0
                torch.save(head.state_dict(), options.out / "head.pt")
        seconds = now() - IMPORTED_AT
        head.load_state_dict(torch.load(options.out / "head.pt", weights_only=True))
        logits = head(features_of(trunk, splits["test"], options.size, pool))
    report(
        imported_at=IMPORTED_AT,
        seconds=seconds,
        epochs=epochs,
        test_accuracy=accuracy(logits, labels["test"].tolist()),
        bf16=HAS_BF16,
    )


if __name__ == "__main__":
    main()
