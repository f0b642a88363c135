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
_FIELDS = {"training": "num_train", "validation": "num_val", "evaluation": "num_val"}


def stated_sizes(text: str) -> dict[str, object]:
    """Return the fields of a RunLog that a text states; a number that varies is left out.

    Keras' loaders print `Found 400 files belonging to 2 classes.` without the split, and `Using 400
    files for validation.`; Hugging Face's Trainer prints `Num examples = 400`.
    """
    found = tuple(dict.fromkeys(int(num) for num in _FOUND.findall(text)))
    stated = [(split, num) for num, split in _USING.findall(text)]
    stated += [(split.lower(), num) for split, num in _RUNNING.findall(text)]
    sizes: dict[str, set[int]] = {}
    for split, num in stated:
        sizes.setdefault(_FIELDS[split], set()).add(int(num))
    known: dict[str, object] = {name: nums.pop() for name, nums in sizes.items() if len(nums) == 1}
    return {"sizes_found": found, **known} if found else known
