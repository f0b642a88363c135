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
_SPLIT = r"(?P<split>train(?:ing)?|val(?:idation)?|valid|test(?:ing)?)"
_NOUN = r"(?:sample|image|img|example|picture|photo|file|instance|record)s?"
_NAMED = re.compile(  # `Val samples: 30`, `Number of training examples = 210`, `val_size: 30`
    rf"(?<![a-z]){_SPLIT}(?:[ _-](?:(?:data)?set|data|split))?[ _-](?:{_NOUN}|size|len(?:gth)?)"
    r"\s*[:=]\s*(?P<num>\d{2,})(?![\d.%/])",
    re.IGNORECASE,
)
_COUNTED = (
    re.compile(  # `210 training samples`
        rf"(?<![\d.,/])(?P<num>\d{{2,}}) {_SPLIT} {_NOUN}\b(?! ?/| per)", re.IGNORECASE
    ),
    re.compile(  # `1200 images in the val set`
        rf"(?<![\d.,/])(?P<num>\d{{2,}}) {_NOUN} (?:for|in) (?:the )?{_SPLIT}\b", re.IGNORECASE
    ),
    re.compile(  # `Training on 210 samples, validating on 30 samples`
        rf"\b(?P<split>train|validat|test)(?:e|ing)? on (?P<num>\d{{2,}}) {_NOUN}\b", re.IGNORECASE
    ),
)
_PAIR = re.compile(  # `3260 train / 408 val images`
    r"(?<![\d.,/])(\d{2,}) train(?:ing)?(?: ?[/,|] ?| and )(\d{2,}) "
    r"(?:val(?:idation)?|valid|test(?:ing)?)\b(?! ?(?:step|batch|epoch))",
    re.IGNORECASE,
)
_FIELDS = {"training": "num_train", "validation": "num_val", "evaluation": "num_val"}


def stated_sizes(text: str) -> dict[str, object]:
    """Return the fields of a RunLog that a text states; a number that varies is left out.

    Keras' loaders print `Found 400 files belonging to 2 classes.` without the split, and `Using 400
    files for validation.`; Hugging Face's Trainer prints `Num examples = 400`;
    scripts print `train: 1600 images, val: 400 images` or `Val samples: 400`.
    """
    found = tuple(dict.fromkeys(int(num) for num in _FOUND.findall(text)))
    beside = {*_BESIDE.findall(text), *_PAIR.findall(text)}
    if not found and len(beside) == 1:
        found = tuple(map(int, beside.pop()))
    found = found or _of_named_sets(text)
    stated = [(split, num) for num, split in _USING.findall(text)]
    stated += [(split.lower(), num) for split, num in _RUNNING.findall(text)]
    sizes: dict[str, set[int]] = {}
    for split, num in stated:
        sizes.setdefault(_FIELDS[split], set()).add(int(num))
    known: dict[str, object] = {name: nums.pop() for name, nums in sizes.items() if len(nums) == 1}
    return {"sizes_found": found, **known} if found else known


def _of_named_sets(text: str) -> tuple[int, ...]:
    """Return the sizes of training, validation and test, without those that the text does not have.

    Empty without a held-out one; of a text without that of training, the first one is 0.
    """
    sizes: dict[str, set[int]] = {}
    for pattern in (_NAMED, *_COUNTED):
        for found in pattern.finditer(text):
            sizes.setdefault(found["split"][:3].lower(), set()).add(int(found["num"]))
    known = {split: nums.pop() for split, nums in sizes.items() if len(nums) == 1}
    held_out = [known[split] for split in ("val", "tes") if split in known]
    return (known.get("tra", 0), *held_out) if held_out else ()
