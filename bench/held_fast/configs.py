"""Compare configs and flags: examples resolve to the same bytes, commands take the same flags."""

from __future__ import annotations

import re
from pathlib import Path

from bench.held_fast.checkout import Checkout, set_differences

RESOLVING = ("train", "climb", "prepare", "check", "fit-recipe", "advise")
_FLAG = re.compile(r"^(?:-\w(?: \S+)?, )?--\S+|^\[?[A-Z]{3,}|^\{")


def compare_configs(old: Checkout, new: Checkout, folder: Path) -> tuple[list[str], list[str]]:
    """Compare `--show-config` of every example and `--help` of every command.

    Returns:
        (differences, notes).
    """
    paths = {
        checkout.name: sorted(
            str(path.relative_to(checkout.root))
            for path in (checkout.root / "examples").rglob("*.yaml")
        )
        for checkout in (old, new)
    }
    found = set_differences(set(paths["old"]), set(paths["new"]), "examples")
    notes = []
    results = {}
    for checkout in (old, new):
        examples = [path for path in paths[checkout.name] if path in paths["old"]]
        for name in examples:  # the same relative path, so that messages can be compared
            copy = folder / checkout.name / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((checkout.root / name).read_bytes())
        runs = [[cmd, name, "--show-config"] for name in examples for cmd in RESOLVING]
        runs += [[*run, "--json"] for run in runs]
        listing = checkout.probe("run_commands", {"runs": [["--help"]]}, cwd=folder / checkout.name)
        commands = re.findall(r"^  ([a-z][a-z-]+) {2,}\S", listing[0]["out"], re.MULTILINE)
        helps = [[command, "--help"] for command in commands]
        answers = checkout.probe("run_commands", {"runs": runs + helps}, cwd=folder / checkout.name)
        results[checkout.name] = {
            " ".join(words): answer for words, answer in zip(runs + helps, answers, strict=True)
        }
    before, after = results["old"], results["new"]
    found += set_differences(set(before), set(after), "commands")
    num_shown = num_texts = 0
    for words in before.keys() & after.keys():
        one, other = before[words], after[words]
        if one["code"] != other["code"]:
            found.append(f"{words}: exit code {one['code']}, now {other['code']}")
        elif words.endswith("--help"):
            found += set_differences(flags_of(one["out"]), flags_of(other["out"]), words)
            texts = {
                name: set(answer["out"].splitlines())
                for name, answer in (("old", one), ("new", other))
            }
            num_texts += len(texts["old"] - texts["new"])
        else:
            num_shown += one["code"] == 0
            if one["out"] != other["out"]:
                found += set_differences(
                    set(one["out"].splitlines()), set(other["out"].splitlines()), words
                )
    notes.append(f"{num_shown} resolved configs compared; {num_texts} lines of help differ in text")
    return found, notes


def flags_of(text: str) -> set[str]:
    """Return each flag or argument of a help page, with its choices and default."""
    flags, flag = {}, ""
    for line in text.splitlines():
        inner = line.strip("│╭╰╮╯─ ")
        if not line.startswith("│") or not inner:
            continue
        if _FLAG.match(inner):
            flag = re.split(r" {2,}", inner)[0]
            flags[flag] = ""
        if flag:
            default = re.search(r"\((default: .*?|required)\)\s*$", inner)
            flags[flag] = default[0].strip() if default else flags[flag]
    return {f"{flag} {default}".strip() for flag, default in flags.items()}
