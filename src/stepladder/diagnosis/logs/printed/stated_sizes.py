"""Sizes of the sets, where the output of a script states them before its first epoch."""

from __future__ import annotations

import re

_FOUND = re.compile(
    r"\bFound (\d+) (?:validated )?(?:files|images|image filenames|samples)\b[^\n]*\bclasses\b"
)
_USING = re.compile(r"\bUsing (\d+) (?:files|images|samples) for (training|validation)\b")
_RUNNING = re.compile(
    r"\*+ Running (training|evaluation)\b[^\n]*\n[^\n]*\bNum examples\s*[=:]\s*(\d+)\b",
    re.IGNORECASE,
)
_BESIDE = re.compile(  # of both sets in one line: `train: 5216 images, val: 1040 images`
    r"\btrain(?:ing)?(?: set| size)?\s*[:=]\s*(\d{2,})(?![\d.%/])[^\n\d.]{1,40}?"
    r"\b(?:val|valid|validation|test|testing)(?: set| size)?\s*[:=]\s*(\d{2,})(?![\d.%/])",
    re.IGNORECASE,
)
_FIELDS = {"training": "num_train", "validation": "num_val", "evaluation": "num_val"}


def stated_sizes(text: str) -> dict[str, object]:
    """Return the fields of a RunLog that a text states; a number that varies is left out.

    Keras' loaders print `Found 400 files belonging to 2 classes.` without the split, and `Using 400
    files for validation.`; Hugging Face's Trainer prints `Num examples = 400`;
    scripts print `train: 1600 images, val: 400 images`.
    """
    found = tuple(dict.fromkeys(int(num) for num in _FOUND.findall(text)))
    beside = set(_BESIDE.findall(text))
    if not found and len(beside) == 1:
        found = tuple(map(int, beside.pop()))
    stated = [(split, num) for num, split in _USING.findall(text)]
    stated += [(split.lower(), num) for split, num in _RUNNING.findall(text)]
    sizes: dict[str, set[int]] = {}
    for split, num in stated:
        sizes.setdefault(_FIELDS[split], set()).add(int(num))
    known: dict[str, object] = {name: nums.pop() for name, nums in sizes.items() if len(nums) == 1}
    return {"sizes_found": found, **known} if found else known
