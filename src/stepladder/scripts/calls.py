"""Change the arguments of a call in a script's text."""

from __future__ import annotations

import libcst as cst

from stepladder.scripts.contract import Edit


def with_argument(call: cst.Call, name: str, value: str) -> cst.Call:
    """Return a call with an argument by name, which replaces one of that name."""
    expression = cst.parse_expression(value)
    args = list(call.args)
    for idx, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[idx] = arg.with_changes(value=expression)
            return call.with_changes(args=args)
    for idx, arg in enumerate(args):
        if arg.star == "**":  # which may have it already
            args[idx] = arg.with_changes(value=_with_entry(arg.value, name, expression))
            return call.with_changes(args=args)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(keyword=cst.Name(name), value=expression, equal=equal)
    if args:
        last = args[-1]
        between = args[-2].comma if len(args) > 1 else None
        comma = between if isinstance(between, cst.Comma) else _comma()
        if isinstance(last.comma, cst.Comma):  # as in a call with one argument a line
            new = new.with_changes(comma=last.comma)
            args[-1] = last.with_changes(comma=comma)
        else:
            new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
            args[-1] = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])


def _with_entry(
    mapping: cst.BaseExpression, name: str, value: cst.BaseExpression
) -> cst.BaseExpression:
    """Return a dictionary with an entry that replaces one of that name."""
    entry = cst.DictElement(key=cst.SimpleString(f'"{name}"'), value=value)
    if isinstance(mapping, cst.Dict):
        return mapping.with_changes(elements=[*mapping.elements, entry])
    return cst.Dict([cst.StarredDictElement(mapping), entry])


def argument_at(call: cst.Call, edit: Edit) -> int | None:
    """Return the index of the argument that an edit scales; None: the call does not have it."""
    for idx, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is not None and arg.keyword.value == edit.name:
            return idx
        if arg.keyword is None and idx == edit.position:
            return idx
    return None


def scaled(call: cst.Call, edit: Edit) -> cst.Call:
    """Return a call with one of its arguments multiplied."""
    at = argument_at(call, edit)
    if at is None:
        return call
    args = list(call.args)
    value = args[at].value
    is_simple = isinstance(
        value, (cst.Name, cst.Attribute, cst.Integer, cst.Float, cst.Call, cst.Subscript)
    )
    if not is_simple:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    product = cst.BinaryOperation(
        left=value, operator=cst.Multiply(), right=cst.parse_expression(edit.text)
    )
    args[at] = args[at].with_changes(value=product)
    return call.with_changes(args=args)


def has_plain_arguments(call: cst.Call) -> bool:
    """Return whether a call's first argument has no name, and no argument hides others."""
    first = call.args[0] if call.args else None
    is_plain = first is not None and first.keyword is None
    return is_plain and not any(arg.star for arg in call.args)


def direct(call: cst.Call, left_out: str) -> cst.Call:
    """Return a call of the first argument with the others, but for those with these names."""
    names = set(left_out.split(", "))
    first, *others = call.args
    args = [arg for arg in others if arg.keyword is None or arg.keyword.value not in names]
    if args and len(args) < len(others):
        last = call.args[-1]
        args[-1] = args[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
    function = first.value
    if not isinstance(function, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        function = function.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return call.with_changes(func=function, args=args)


def _comma() -> cst.Comma:
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def with_function(call: cst.Call, name: str) -> cst.Call:
    """Return a call with a function around its first argument, or the one named `dataset`."""
    args = list(call.args)
    for idx, arg in enumerate(args):
        is_it = arg.keyword is None or arg.keyword.value == "dataset"
        if is_it and not arg.star:
            value = cst.Call(func=cst.Name(name), args=[cst.Arg(arg.value)])
            args[idx] = arg.with_changes(value=value)
            break
    return call.with_changes(args=args)
