"""The value of --label-pattern: a regular expression whose group is a picture's class."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepladder.data.sources.walk import Skipped
from stepladder.errors import UsageError

_OPTION = "prepare.label_pattern"


@dataclass(frozen=True)
class LabelPattern:
    """A regular expression with one group."""

    compiled: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> LabelPattern:
        """Compile the expression.

        Raises:
            UsageError: if it is invalid, or has no group or several.
        """
        try:
            compiled = re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{text!r} is not a valid regular expression ({error})",
                where=_OPTION,
                fix="Correct it, and write it in single quotes: --label-pattern '([^/]+)_[0-9]+'",
            ) from None
        if compiled.groups != 1:
            raise UsageError(
                f"the regular expression {text!r} has {compiled.groups} groups in parentheses, but "
                "must have exactly one",
                where=_OPTION,
                fix="Put parentheses around the class alone, such as --label-pattern "
                "'([^/]+)_[0-9]+'; write other parentheses as (?:…).",
            )
        return cls(compiled)

    def __call__(self, path: str) -> str | None:
        """Return the class of a picture; None if its path does not match."""
        match = self.compiled.search(path)
        return (match[1] or "").strip() or None if match else None

    def matches_nothing(self, skipped: Skipped) -> UsageError:
        """Return the error that no path matches."""
        some = [path for paths in skipped.examples.values() for path in paths]
        return UsageError(
            f"the regular expression {self.compiled.pattern!r} does not match the path of any "
            "picture",
            where=_OPTION,
            why=f"The path of a picture is, for example, {some[0]}." if some else None,
            fix="Write an expression that matches these paths, such as '([^/]+)_[0-9]+'.",
        )
