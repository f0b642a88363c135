"""Join tables of splits, such as train.txt and val.txt, with a command; name those left out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.splits.split_names import (
    assign_splits,
    named_as_splits,
    split_candidates,
)
from stepladder.data.sources.walk import printable

LABEL: Final = PrepareConfig.label_column
_QUOTE: Final = b'"'
_MAX_BYTES: Final = 1 << 26
_JSON: Final = (
    "import csv,pathlib,sys;from stepladder.data.sources.label_tables.json_file import read_json;"
    's=sys.argv;w=csv.writer(open(s[1],"w",encoding="utf-8",newline=""));'
    'w.writerow(["path","label","split"]);'
    "[w.writerow([b+r[t.header.index(s[2])],r[t.header.index(s[3])],k]) "
    "for f,b,k in zip(s[4::3],s[5::3],s[6::3]) for t in [read_json(pathlib.Path(f))] "
    "for _,r in t.body]"
)


@dataclass(frozen=True)
class TableMatch:
    """A table that names pictures.

    Attributes:
        label_name: column of labels; empty if each class has its own column.
        described: what has the labels, within a sentence.
        problem: sentences about pictures with several labels, after a blank; empty if there are
            none.
        remedy: what the command does about the problem.
        num_named: number of its rows, of those that were compared, that name a picture.
        num_rows: number of its rows.
        num_folders: number of different places of the pictures relative to the cells.
        are_folders: whether each folder of pictures has a label of its own.
        delimiter: between the cells; empty in JSON.
        are_numbers_of_names: whether the labels are numbers, one for each class in the names of
            the pictures.
        path_at: index of the column of paths.
    """

    table: Path
    path_format: str
    path_name: str
    label_name: str
    described: str
    problem: str
    remedy: str
    columns: tuple[str, ...]
    labels: frozenset[str]
    num_named: int
    num_rows: int
    num_folders: int
    are_folders: bool
    delimiter: str
    are_numbers_of_names: bool
    path_at: int

    def flags(self) -> str:
        """Return the options that read the table, each after a blank."""
        flags = [
            ("--columns", ",".join(self.columns), ""),
            ("--path-column", self.path_name, PrepareConfig.path_column),
            ("--label-column", self.label_name or LABEL, LABEL),
            ("--path-format", self.path_format, "{}"),
        ]
        return "".join(
            f" {flag} {shlex.quote(printable(value))}"
            for flag, value, default in flags
            if value != default
        )


@dataclass(frozen=True)
class Joined:
    """Tables that a command joins.

    Attributes:
        tables: the split and the table of each.
        command: joins them with their splits, and reads the result.
    """

    tables: Sequence[tuple[Split, TableMatch]]
    command: str


def split_of_table(table: Path) -> str:
    """Return the name that means the split of a table, its own or its folder's; else empty."""
    names = (table.stem, table.parent.name)
    return next((name for name in names if split_candidates(name)), "")


def join(found: Sequence[TableMatch], root: Path, typed: Callable[[Path], str]) -> Joined | None:
    """Return how to join the tables of train and of other splits; None if there are no such tables.

    Args:
        found: tables that name pictures with their labels.
        root: the source's folder.
        typed: writes a path in a command.
    """
    groups: dict[tuple[str, str], list[TableMatch]] = {}
    for match in found:
        table = match.table
        key = (str(table.parent), "") if split_candidates(table.stem) else ("", table.name)
        groups.setdefault(key, []).append(match)
    for alike in groups.values():
        by_name: dict[str, list[TableMatch]] = {}
        for match in alike:
            by_name.setdefault(split_of_table(match.table), []).append(match)
        splits = assign_splits(named_as_splits(filter(None, by_name)))
        tables = [(splits[name], match) for name in splits for match in by_name[name]]
        tables.sort(key=lambda pair: list(Split).index(pair[0]))
        kinds = {split for split, _ in tables}
        if Split.TRAIN in kinds and len(kinds) > 1 and (command := _command(tables, root, typed)):
            return Joined(tables, command)
    return None


def left_out(used: Iterable[Path], found: Iterable[Path]) -> str:
    """Return a sentence, after a blank, about lists of other splits; empty without such lists.

    Args:
        used: tables that the command reads.
        found: all tables that name pictures.
    """
    tables = sorted(set(used))
    beside = {
        path.stem: path
        for folder in sorted({one.parent for one in tables})
        for path in sorted(folder.iterdir())
        if path.is_file() and (path in tables or _is_list(path))
    }
    named = [beside[stem] for stem in named_as_splits(beside)]
    names = [printable(path.name) for path in named if path not in tables]
    others = (one for one in found if one not in tables and split_of_table(one))
    alike = {(one.name, one.parent.parent) for one in tables if split_of_table(one)}
    names += [
        printable(f"{one.parent.name}/{one.name}")
        for one in others
        if (one.name, one.parent.parent) in alike
    ]
    if not names:
        return ""
    return (
        f" The command does not read {name_some(names)}; to use what is listed there, write it "
        "into one table with the columns path, label and split."
    )


def _is_list(path: Path) -> bool:
    return path.suffix.lower() in {".txt", ".lst", ".csv", ".tsv"}


def _command(
    tables: Sequence[tuple[Split, TableMatch]], root: Path, typed: Callable[[Path], str]
) -> str:
    """Return the command that joins tables of splits, and reads the result; empty if it cannot."""
    _, first = tables[0]
    shapes = {
        (one.table.suffix, one.delimiter, one.columns, one.path_name, one.label_name, one.path_at)
        for _, one in tables
    }
    if len(shapes) > 1 or not (first.delimiter or first.label_name):
        return ""
    folders = {one.table.parent for _, one in tables}
    folder = root if len(folders) > 1 else first.table.parent
    places = [_place(one, folder) for _, one in tables]
    if len(folders) == 1 and len(set(places)) == 1:
        starts, path_format = [""] * len(tables), first.path_format
    else:
        ends = {end for _, end in places}
        starts = [start for start, _ in places]
        is_text = bool(first.delimiter)
        if len(ends) > 1 or (is_text and not _can_begin_with([one for _, one in tables], starts)):
            return ""
        path_format = f"{{}}{ends.pop()}"
    if not first.delimiter:
        return _of_json(tables, starts, path_format, typed, folder / "all-splits.csv")
    out = folder / f"all-splits{first.table.suffix}"
    mark = first.delimiter.replace("\t", "\\t")
    script = '{sub(/\\r$/,"")}'
    if any(starts) and first.path_at:
        script = f'BEGIN{{FS=OFS="{mark}"}} {script}'
    if not first.columns:
        script += f' NR==1{{print $0"{mark}split"}} FNR==1{{next}}'
    script += " !NF{next}"
    for at, (split, _) in enumerate(tables, start=1):
        start = starts[at - 1]
        row, edit = "$0", ""
        if start and first.path_at:
            edit = f'$({first.path_at + 1})="{start}"$({first.path_at + 1});'
        elif start:
            row = f'"{start}"$0'
        script += f' FILENAME==ARGV[{at}]{{{edit}print {row}"{mark}{split}"}}'
    columns = (*first.columns, "split") if first.columns else ()
    flags = replace(first, columns=columns, path_format=path_format).flags()
    names = " ".join(typed(one.table) for _, one in tables)
    edit = f"awk {shlex.quote(script)} {names} > {typed(out)}"
    return f"{edit} && stepladder prepare {typed(out)}{flags}"


def _of_json(
    tables: Sequence[tuple[Split, TableMatch]],
    starts: Sequence[str],
    path_format: str,
    typed: Callable[[Path], str],
    out: Path,
) -> str:
    """Return the command that writes the paths and labels of JSON files to a table."""
    _, first = tables[0]
    words = [typed(out), *map(shlex.quote, (first.path_name, first.label_name))]
    for (split, match), start in zip(tables, starts, strict=True):
        words += [typed(match.table), shlex.quote(start), split.value]
    flags = "" if path_format == "{}" else f" --path-format {shlex.quote(printable(path_format))}"
    edit = f"python -c {shlex.quote(_JSON)} {' '.join(words)}"
    return f"{edit} && stepladder prepare {typed(out)}{flags}"


def _place(match: TableMatch, folder: Path) -> tuple[str, str]:
    """Return what is before and after a cell in the path of its picture relative to a folder."""
    before, _, after = match.path_format.partition("{}")
    inside, _, start = before.rpartition("/")
    above = os.path.relpath(match.table.parent / inside, folder)
    return f"{'' if above == '.' else f'{above}/'}{start}", after


def _can_begin_with(tables: Sequence[TableMatch], starts: Sequence[str]) -> bool:
    """Return True if the text of each path can begin with another one, without quotes."""
    try:
        texts = [one.table.read_bytes() for one in tables if one.table.stat().st_size < _MAX_BYTES]
    except OSError:
        return False
    signs = re.compile(r'[\\"\s]|' + re.escape(tables[0].delimiter))
    is_plain = len(texts) == len(tables) and not any(_QUOTE in text for text in texts)
    return is_plain and not any(map(signs.search, starts))
