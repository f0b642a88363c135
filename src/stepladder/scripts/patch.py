"""Write what was kept as a small diff of the script's own files."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import libcst as cst
from libcst.metadata import (
    CodeRange,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
)

from stepladder.ladder.summary.wording import gain_interval
from stepladder.records.ladder import Interval
from stepladder.records.script import Place, ScriptFacts
from stepladder.scripts.calls import (
    argument_at,
    direct,
    has_plain_arguments,
    scaled,
    with_argument,
    with_function,
)
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.flow import flow_of
from stepladder.scripts.settings import Settings
from stepladder.scripts.split import split
from stepladder.watching.script.notebook import (
    cell_with_imports,
    is_notebook,
    source_of,
    whole_files,
)

_DEFINITIONS: Final = (cst.ClassDef, cst.FunctionDef)


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A diff.

    Attributes:
        diff: unified; empty: nothing can be changed.
        texts: the changed files, by absolute path.
        only_outside: rungs that it does not have, with why.
    """

    diff: str = ""
    texts: Mapping[Path, str] = field(default_factory=dict)
    only_outside: Mapping[str, str] = field(default_factory=dict)


def patch_of(
    kept: Sequence[ScriptRung],
    facts: ScriptFacts,
    settings: Settings,
    gains: Mapping[str, Interval | None],
    *,
    script: Path | None,
    root: Path | None = None,
) -> Patch:
    """Return the diff of what was kept.

    Args:
        kept: rungs, in order.
        settings: with all of them.
        gains: by rung, for the comments.
        script: the main file; None: a module, which gets no lines after its imports.
        root: only files below this folder are changed; None: the current one.
    """
    root = (root or Path.cwd()).resolve()
    only_outside: dict[str, str] = {}
    by_file: dict[Path, list[Edit]] = {}
    for rung in kept:
        edits = rung.edits(facts, settings)
        files = [] if isinstance(edits, str) else [_file_of(edit, script) for edit in edits]
        if isinstance(edits, str):
            only_outside[rung.name] = edits
        elif any(file is None or not file.is_relative_to(root) for file in files):
            only_outside[rung.name] = "the place is in no file below the current folder"
        else:
            for edit, file in zip(edits, files, strict=True):
                if file is not None:
                    by_file.setdefault(file, []).append(edit)
    changed: dict[Path, str] = {}
    for file, of_file in by_file.items():
        before = source_of(file)
        taken = _taken(before, of_file)
        only_outside.update(taken)
        of_file = [edit for edit in of_file if edit.rung not in taken]
        after, missed = edited(before, of_file, gains)
        only_outside.update(dict.fromkeys(missed, "its place was not found in the text"))
        if after != before:
            changed[file] = after
    texts = whole_files(changed)
    diffs = [_diff(_whole(file), text, file.relative_to(root)) for file, text in texts.items()]
    return Patch(diff="".join(diffs), texts=texts, only_outside=only_outside)


def _taken(text: str, edits: Sequence[Edit]) -> dict[str, str]:
    """Return the rungs whose lines need a name that a file has for something else, with why."""
    tree = ast.parse(text)
    of_modules = {
        alias.name.partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname is None
    }
    shared = {
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    own = flow_of(tree.body).bound.keys() | shared
    found: dict[str, str] = {}
    for edit in edits:
        new = flow_of(ast.parse(edit.text).body).bound if edit.spot is Spot.START else {}
        for name in (*new, *edit.imports):
            if name in own and not (name in edit.imports and name in of_modules):
                found[edit.rung] = f"its lines need the name {name}, which the script has already"
    return found


def _file_of(edit: Edit, script: Path | None) -> Path | None:
    is_cell = script is not None and is_notebook(script)
    if script is not None and is_cell and edit.spot is Spot.START:
        is_other = edit.place is not None and not edit.place.file.startswith(str(script))
        return Path(edit.place.file) if edit.place and is_other else cell_with_imports(script)
    return Path(edit.place.file) if edit.place is not None else script


def _whole(file: Path) -> str:
    """Return the text of a script, with the ends of its lines, or of a notebook."""
    return file.read_text(encoding="utf-8") if is_notebook(file) else source_of(file)


def _diff(before: str, after: str, name: Path) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a{os.sep}{name}",
        f"b{os.sep}{name}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def edited(
    text: str, edits: Sequence[Edit], gains: Mapping[str, Interval | None]
) -> tuple[str, list[str]]:
    """Return a changed text, and the rungs whose places were not found.

    Args:
        edits: of this file.
        gains: by rung, for the comments.
    """
    wrapper = MetadataWrapper(cst.parse_module(text))
    positions = wrapper.resolve(PositionProvider)
    parents = wrapper.resolve(ParentNodeProvider)
    calls = {_key(where): node for node, where in positions.items() if isinstance(node, cst.Call)}
    kinds: dict[Spot, type[cst.CSTNode]] = {Spot.SPLIT: cst.FunctionDef, Spot.INTO: cst.If}
    starts: dict[tuple[type[cst.CSTNode], int, int], cst.CSTNode] = {
        (type(node), where.start.line, where.start.column): node
        for node, where in positions.items()
        if isinstance(node, tuple(kinds.values()))
    }
    nodes = {
        id(edit): starts.get((kinds[edit.spot], edit.place.line, edit.place.column))
        if edit.spot in kinds and edit.place is not None
        else _node_of(edit, calls, parents, text)
        for edit in edits
    }
    missed = list(
        dict.fromkeys(
            edit.rung for edit in edits if edit.spot is not Spot.START and nodes[id(edit)] is None
        )
    )
    arguments: dict[cst.CSTNode, list[Edit]] = {}
    before: dict[cst.CSTNode, list[Edit]] = {}
    guards: dict[cst.CSTNode, list[Edit]] = {}
    at_start: list[Edit] = []
    for edit in edits:
        node = nodes[id(edit)]
        if edit.rung in missed:
            continue
        if node is None:
            at_start.append(edit)
        else:
            target = {Spot.BEFORE: before, Spot.GUARD: guards}.get(edit.spot, arguments)
            target.setdefault(node, []).append(edit)
    edit_module = _Editor(arguments, before, guards, gains)
    module = wrapper.module.visit(edit_module)
    assert isinstance(module, cst.Module)
    needed = {name for edit in edits if edit.rung not in missed for name in edit.imports}
    module = _with_start(module, at_start, needed - _imported(module), gains)
    return module.code, missed


def _node_of(
    edit: Edit,
    calls: Mapping[tuple[int, int, int, int], cst.Call],
    parents: Mapping[cst.CSTNode, cst.CSTNode],
    text: str,
) -> cst.CSTNode | None:
    """Return the call that an edit changes, or the statement before which it goes."""
    if edit.place is None or edit.spot is Spot.START:
        return None
    call = calls.get(_place_key(edit.place, text))
    if call is None or (edit.spot is Spot.SCALE and argument_at(call, edit) is None):
        return None
    if edit.spot is Spot.DIRECT and not has_plain_arguments(call):
        return None
    if edit.spot is Spot.GUARD:
        return _statement_of(call, parents)
    return _statement(call, parents) if edit.spot is Spot.BEFORE else call


def _key(where: CodeRange) -> tuple[int, int, int, int]:
    return where.start.line, where.start.column, where.end.line, where.end.column


def _place_key(place: Place, text: str) -> tuple[int, int, int, int]:
    """Return the place with columns in characters instead of bytes."""
    lines = text.splitlines()

    def column(line: int, num_bytes: int) -> int:
        if line > len(lines):
            return num_bytes
        return len(lines[line - 1].encode()[:num_bytes].decode(errors="ignore"))

    return (
        place.line,
        column(place.line, place.column),
        place.end_line,
        column(place.end_line, place.end_column),
    )


def _statement_of(
    call: cst.Call, parents: Mapping[cst.CSTNode, cst.CSTNode]
) -> cst.SimpleStatementLine | None:
    """Return the line that is only this call; None if it has more."""
    line = _statement(call, parents)
    is_all = line is not None and len(line.body) == 1 and isinstance(line.body[0], cst.Expr)
    return line if is_all and isinstance(parents[call], cst.Expr) else None


def _statement(
    node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]
) -> cst.SimpleStatementLine | None:
    """Return the line of statements that a node is in; None if it is a part of a block's head."""
    while node in parents:
        node = parents[node]
        if isinstance(node, cst.SimpleStatementLine):
            return node
        if isinstance(node, cst.BaseCompoundStatement):
            return None
    return None


class _Editor(cst.CSTTransformer):
    """Changes calls, and puts lines before statements."""

    def __init__(
        self,
        arguments: Mapping[cst.CSTNode, Sequence[Edit]],
        before: Mapping[cst.CSTNode, Sequence[Edit]],
        guards: Mapping[cst.CSTNode, Sequence[Edit]],
        gains: Mapping[str, Interval | None],
    ) -> None:
        super().__init__()
        self._arguments = arguments
        self._before = before
        self._guards = guards
        self._gains = gains

    def leave_Call(  # noqa: N802
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        for edit in self._arguments.get(original_node, ()):
            match edit.spot:
                case Spot.ARGUMENT:
                    updated_node = with_argument(updated_node, edit.name, edit.text)
                case Spot.SCALE:
                    updated_node = scaled(updated_node, edit)
                case Spot.INSTEAD:
                    return cst.parse_expression(edit.text)
                case Spot.DIRECT:
                    updated_node = direct(updated_node, edit.text)
                case Spot.FUNCTION:
                    function = cst.parse_expression(edit.text)
                    updated_node = updated_node.with_changes(func=function)
                case _:
                    updated_node = with_function(updated_node, edit.text)
        return updated_node

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        for edit in self._arguments.get(original_node, ()):
            both = split(updated_node, float(edit.text))
            if both is not None:
                comment = _comment_line(edit.rung, self._gains.get(edit.rung))
                leading = [*both[0].leading_lines, comment]
                return cst.FlattenSentinel([both[0].with_changes(leading_lines=leading), both[1]])
        return updated_node

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        body = self._moved(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_Module(  # noqa: N802
        self, original_node: cst.Module, updated_node: cst.Module
    ) -> cst.Module:
        body = self._moved(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def _moved(
        self, original: Sequence[cst.BaseStatement], updated: Sequence[cst.BaseStatement]
    ) -> list[cst.BaseStatement] | None:
        """Return a block in which statements are moved into the `if` after them; None: as it is."""
        found = {
            at: edit
            for at, node in enumerate(original)
            for edit in self._arguments.get(node, ())
            if edit.spot is Spot.INTO
        }
        if not found or len(original) != len(updated):
            return None
        body = list(updated)
        for at, edit in sorted(found.items(), reverse=True):
            first, branch = at - int(edit.text), body[at]
            if first < 0 or not isinstance(branch, cst.If):
                return None
            inner: Any = branch.body
            comment = _comment_line(edit.rung, self._gains.get(edit.rung))
            lines: list[Any] = body[first:at]
            leading = [line for line in lines[0].leading_lines if line.comment is None]
            kept = [line for line in lines[0].leading_lines if line.comment is not None]
            lines[0] = lines[0].with_changes(leading_lines=kept)
            of_branch = branch.leading_lines
            blank = [line for line in of_branch if line.comment is None]
            more = [line for line in of_branch if line.comment is not None]
            before = [*(leading or blank), comment, *more]
            body[first : at + 1] = [
                branch.with_changes(
                    body=inner.with_changes(body=[*lines, *inner.body]), leading_lines=before
                )
            ]
        return body

    def leave_With(  # noqa: N802
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.BaseStatement:
        edits = [edit for item in original_node.items for edit in self._of_calls(item)]
        rungs = dict.fromkeys(edit.rung for edit in edits)
        lines = [_comment_line(rung, self._gains.get(rung)) for rung in rungs]
        return updated_node.with_changes(leading_lines=[*updated_node.leading_lines, *lines])

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        edits = self._before.get(original_node, ())
        rungs = {edit.rung: edit for edit in self._of_calls(original_node)}
        lines: list[cst.BaseStatement] = []
        for edit in self._guards.get(original_node, ()):
            return _guarded(updated_node, edit, self._gains.get(edit.rung))
        if rungs:
            comments = [_comment_line(rung, self._gains.get(rung)) for rung in rungs]
            leading = [*updated_node.leading_lines, *comments]
            updated_node = updated_node.with_changes(leading_lines=leading)
        for edit in edits:
            lines += _statements(edit, self._gains.get(edit.rung))
        if not lines:
            return updated_node
        first = lines[0]
        assert isinstance(first, cst.SimpleStatementLine)
        lines[0] = first.with_changes(
            leading_lines=[
                *[line for line in updated_node.leading_lines if line.comment is None],
                *first.leading_lines,
            ]
        )
        kept = [line for line in updated_node.leading_lines if line.comment is not None]
        return cst.FlattenSentinel([*lines, updated_node.with_changes(leading_lines=kept)])

    def _of_calls(self, statement: cst.CSTNode) -> list[Edit]:
        found = _Calls(self._arguments)
        statement.visit(found)
        return found.edits


class _Calls(cst.CSTVisitor):
    """Collects the edits of the calls in a statement."""

    def __init__(self, arguments: Mapping[cst.CSTNode, Sequence[Edit]]) -> None:
        super().__init__()
        self.edits: list[Edit] = []
        self._arguments = arguments

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        self.edits += self._arguments.get(node, ())


def _guarded(line: cst.SimpleStatementLine, edit: Edit, speed: Interval | None) -> cst.If:
    """Return a line under a condition, with the comments that were before it."""
    comment = _comment_line(edit.rung, speed)
    return cst.If(
        test=cst.parse_expression(edit.text),
        body=cst.IndentedBlock([line.with_changes(leading_lines=[])]),
        leading_lines=[*line.leading_lines, comment],
    )


def _comment(rung: str, speed: Interval | None) -> str:
    gain = f": {gain_interval(speed)}" if speed is not None else ""
    return f"# stepladder, {rung}{gain}"


def _comment_line(rung: str, speed: Interval | None) -> cst.EmptyLine:
    return cst.EmptyLine(comment=cst.Comment(_comment(rung, speed)))


def _statements(edit: Edit, speed: Interval | None) -> list[cst.BaseStatement]:
    """Return the lines of an edit, with its comment before the first."""
    body = list(cst.parse_module(edit.text).body)
    comment = _comment_line(edit.rung, speed)
    first = body[0]
    assert isinstance(first, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    body[0] = first.with_changes(leading_lines=[*first.leading_lines, comment])
    return list(body)


def _imported(module: cst.Module) -> set[str]:
    """Return the modules that `import NAME` binds at the top of a file."""
    found = set()
    for statement in module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for part in statement.body:
            if isinstance(part, cst.Import):
                found |= {
                    name.evaluated_name.partition(".")[0] for name in part.names if not name.asname
                }
    return found


def _with_start(
    module: cst.Module,
    edits: Sequence[Edit],
    imports: set[str],
    gains: Mapping[str, Interval | None],
) -> cst.Module:
    """Return a module with imports, and with lines after its imports."""
    body = list(module.body)
    after = 0
    for idx, statement in enumerate(body):
        if _is_import(statement):
            after = idx + 1
        elif not _is_docstring(statement) and not _is_guarded_import(statement):
            break
    new: list[cst.BaseStatement] = [
        cst.SimpleStatementLine([cst.Import([cst.ImportAlias(cst.Name(name))])])
        for name in sorted(imports)
    ]
    for edit in edits:
        lines = _statements(edit, gains.get(edit.rung))
        first: Any = lines[0]
        blank = [cst.EmptyLine(indent=False)]
        if isinstance(first, _DEFINITIONS):
            blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        lines[0] = first.with_changes(leading_lines=[*blank, *first.leading_lines])
        new += lines
    if not new:
        return module
    if any(isinstance(line, _DEFINITIONS) for line in new) and after < len(body):
        following: Any = body[after]
        kept = [line for line in following.leading_lines if line.comment is not None]
        blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        body[after] = following.with_changes(leading_lines=[*blank, *kept])
    return module.with_changes(body=[*body[:after], *new, *body[after:]])


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(part, (cst.Import, cst.ImportFrom)) for part in statement.body
    )


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def _is_guarded_import(statement: cst.CSTNode) -> bool:
    """Return True for `try: import x`, which further imports may follow."""
    return isinstance(statement, cst.Try) and any(_is_import(one) for one in statement.body.body)
