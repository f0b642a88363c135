"""Values as programs print them: in lists, as NumPy and torch show them, errors in percent."""

from __future__ import annotations

import math
import re

from stepladder.diagnosis.logs.meaning.column_names import read_number, split_of

NUM = (
    r"[-+]?1\.#(?:IND|INF|QNAN|SNAN)\w*|[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|"
    r"[-+]?nan(?:\(\w*\))?|[-+]?inf"
)
NAN = r"(?:nan|inf)(?=[\s,;|)\]]|$)"  # a value, where a word of a name may be
FILLERS = frozenset(
    {"on", "of", "the", "set", "data", "dataset", "split", "images", "examples", "samples"}
)
_LIST = re.compile(rf"\[\s*((?:{NUM})(?:\s*,\s*(?:{NUM}))+)\s*\]")
_WRAPPED = re.compile(  # `np.float32(0.81)`, `tensor(0.81, device='cuda:0')`
    rf"(?<!\w)(?:(?:np\.|numpy\.)?float\d*|(?:torch\.)?tensor|(?:np\.)?array)"
    rf"\(\s*({NUM})\s*(?:,[^()]*)?\)"
)
_RATE = re.compile(r"(?:\blr|learning.?rates?)\W*$", re.IGNORECASE)
_ERROR = re.compile(r"err(or)?$", re.IGNORECASE)


def with_plain_values(line: str) -> str:
    """Return a line with `0.81` for `np.float32(0.81)`."""
    return _WRAPPED.sub(r"\1", line)


def with_means(line: str) -> str:
    """Return a line with the mean of each list of values, such as those of several classes.

    Of learning rates, it has the first one.
    """
    return _LIST.sub(_mean_of_list, line)


def _mean_of_list(found: re.Match[str]) -> str:
    if _RATE.search(found.string[: found.start()]):
        return found[1].split(",")[0]
    numbers = [number for text in found[1].split(",") if (number := read_number(text)) is not None]
    values = [number for number in numbers if not math.isnan(number)]  # of classes that occur
    return repr(sum(values) / len(values)) if values else "nan"


def error_rate(words: str) -> str | None:
    """Return `test error_rate` for the name `test error` of a percentage; None for other names."""
    rest = [word for word in split_of(words)[1].split("_") if word not in FILLERS]
    return _ERROR.sub("error_rate", words) if rest in (["err"], ["error"]) else None
