"""Text: classify lines of source code by their module in Python's standard library.

    stepladder climb examples/text_task.py:SourceLines --run.dir runs/text --train all \
        --batch.lr 0.002 --batch.global-batch-size 32 --schedule.max-epochs 12

A small transformer on words; its input is a dict of tensors. Nothing is downloaded: the text is the
source code of the running Python.
"""

import ast
import importlib.util
import re
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split
from stepladder.task import Metrics

MODULES = ("argparse", "configparser", "doctest", "inspect", "ipaddress", "mailbox", "tarfile")
NUM_HASHES = 4096  # hashed words; 0 is padding
MAX_WORDS = 16
WIDTH = 48
BLOCK_LINES = 25
"""Lines are held out in blocks, as neighbouring lines share words and must be in the same split."""

Line = tuple[dict[str, Tensor], int]


class Lines(Dataset[Line]):
    """Lines of one split, as word hashes (MAX_WORDS,) and the number of words."""

    def __init__(self, split: Split) -> None:
        labelled = [
            (line, label)
            for label, module in enumerate(MODULES)
            for line in lines_of(module, split)
        ]
        self.targets = torch.tensor([label for _, label in labelled])
        rows = [hashes(line) for line, _ in labelled]
        self.num_words = torch.tensor([len(row) for row in rows])
        padded = [row + [0] * (MAX_WORDS - len(row)) for row in rows]
        self.words = torch.tensor(padded)  # (n, MAX_WORDS)
        text = "\n".join(line for line, _ in labelled)
        self.fingerprint = f"{zlib.crc32(text.encode()):08x}"  # differs between Python versions

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Line:
        inputs = {"words": self.words[row], "num_words": self.num_words[row]}
        return inputs, int(self.targets[row])


def lines_of(module: str, split: Split) -> list[str]:
    """Return the lines of a split with at least two words; val and test are a tenth each."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    ast.parse(source)  # fails for a module without source code
    parts = {0: Split.VAL, 1: Split.TEST}
    return [
        line.strip()
        for idx, line in enumerate(source.splitlines())
        if parts.get(idx // BLOCK_LINES % 10, Split.TRAIN) is split and len(words_of(line)) > 1
    ]


def words_of(line: str) -> list[str]:
    return re.findall(r"[a-z]+|[^\sa-z]", line.lower())[:MAX_WORDS]


def hashes(line: str) -> list[int]:
    return [1 + zlib.crc32(word.encode()) % (NUM_HASHES - 1) for word in words_of(line)]


class LineClassifier(nn.Module):
    """Score the modules of a line: embed, one transformer layer, mean over words, linear.

    Shapes: words int64 (n, t), num_words int64 (n,); logits (n, C).
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_HASHES, WIDTH, padding_idx=0)
        self.place = nn.Parameter(torch.zeros(MAX_WORDS, WIDTH))
        self.attend = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=2 * WIDTH, dropout=0.1, batch_first=True
        )
        self.score = nn.Linear(WIDTH, len(MODULES))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        words = inputs["words"]
        is_word = (words != 0).unsqueeze(2)  # (n, t, 1)
        features = self.attend(
            self.embed(words) + self.place, src_key_padding_mask=~is_word.squeeze(2)
        )
        mean = (features * is_word).sum(1) / inputs["num_words"].unsqueeze(1)  # (n, d)
        logits: Tensor = self.score(mean)
        return logits


class SourceLines(Task):
    """Classify lines of source code by their module."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return LineClassifier()

    def data(self, split: Split) -> Lines:
        return Lines(split)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")  # (n,)

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        hits = (logits.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(logits, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.full_like(hits.sum(), len(hits))},
            outputs=logits,
        )

    def describe(self) -> dict[str, list[str]]:
        return {"classes": list(MODULES)}
