"""Substitutes for the data of public scripts: generated, small, the same every time."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

_GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_WORDS = (
    "the a one old small quiet red bright river hill garden road winter morning child painter"
    " sailor teacher horse bird stone letter window bread song opens finds follows carries"
    " remembers paints leaves waits for under over near behind with without and but then slowly"
    " again never often today"
)


def make(kind: str, place: Path, settings: Mapping[str, Any]) -> None:
    """Create one substitute.

    Args:
        kind: a key of MAKERS.
        place: the file or folder where the script expects it.
        settings: its sizes, by name.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    MAKERS[kind](place, **settings)


def digits(folder: Path, *, train: int, test: int) -> None:
    """Write pictures of ten glyphs, shifted and noisy, as MNIST's four files.

    Source: LeCun, Cortes and Burges, "The MNIST database", the IDX file format.
    """
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 0), ("t10k", test, 1)):
        pictures, labels = _digits(count, np.random.default_rng(seed))
        head = struct.pack(">IIII", 0x00000803, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        head = struct.pack(">II", 0x00000801, count)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def _digits(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    rows = [[list(map(int, row)) for row in glyph.split()] for glyph in _GLYPHS]
    glyphs = np.kron(np.array(rows), np.ones((1, 3, 3), dtype=int))  # (10, 21, 15)
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    pictures = np.zeros((count, 28, 28), dtype=np.uint8)
    tops, lefts = rng.integers(1, 7, count), rng.integers(1, 13, count)
    inks = rng.integers(120, 256, (count, 21, 15))
    for idx in range(count):
        top, left = tops[idx], lefts[idx]
        pictures[idx, top : top + 21, left : left + 15] = glyphs[labels[idx]] * inks[idx]
    return pictures, labels


def text(file: Path, *, characters: int) -> None:
    """Write sentences of random words, one per line."""
    rng = np.random.default_rng(0)
    words, lines, length = _WORDS.split(), [], 0
    while length < characters:
        line = " ".join(rng.choice(words, rng.integers(4, 14)))
        lines.append(line)
        length += len(line) + 1
    file.write_text("\n".join(lines)[:characters], encoding="utf-8")


def folder(place: Path) -> None:
    """Make an empty folder."""
    place.mkdir(parents=True, exist_ok=True)


def gpt2(place: Path, *, layers: int, width: int) -> None:
    """Write a GPT-2 with random weights and a byte tokenizer, as from a model hub.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", its code.
    """
    place.mkdir(parents=True, exist_ok=True)
    vocabulary = {letter: idx for idx, letter in enumerate([*_letters(), "<|endoftext|>"])}
    (place / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": len(vocabulary),
        "n_layer": layers,
        "n_embd": width,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 256,
        "eos_token_id": 256,
    }
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rng = np.random.default_rng(0)
    weights = {
        f"transformer.{name}": _fresh(name, shape, rng)
        for name, shape in _gpt2_shapes(layers, width, len(vocabulary)).items()
    }
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})


def _letters() -> list[str]:
    """Return a visible letter for each byte: itself if it is visible, else one beyond 255."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    beyond = iter(range(256, 512))
    return [chr(byte if byte in visible else next(beyond)) for byte in range(256)]


def _gpt2_shapes(layers: int, d: int, num_tokens: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (num_tokens, d), "wpe.weight": (128, d)}
    kinds = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, 4 * d)}
    kinds["mlp.c_proj"] = (4 * d, d)
    for layer in range(layers):
        for name, shape in kinds.items():
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[1:]
    norms = [*(f"h.{layer}.ln_{idx}" for layer in range(layers) for idx in (1, 2)), "ln_f"]
    return shapes | {f"{name}.{kind}": (d,) for name in norms for kind in ("weight", "bias")}


def _fresh(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) == 2:
        return rng.normal(0, 0.02, shape).astype(np.float32)
    return np.full(shape, 1.0 if name.endswith("weight") else 0.0, dtype=np.float32)


MAKERS: dict[str, Callable[..., None]] = {
    "digits": digits,
    "text": text,
    "folder": folder,
    "gpt2": gpt2,
}
