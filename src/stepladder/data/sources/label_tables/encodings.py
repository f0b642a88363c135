"""Find the encoding of a table: by its first bytes, as Windows-1252, or by asking with samples."""

from __future__ import annotations

import codecs
import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.data.sources.listing import name_some
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_MARKS: Final = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
WINDOWS: Final = "cp1252"
_USUAL_SIGNS: Final = frozenset("\u20ac\u2018\u2019\u201c\u201d\u2013\u2014\u2026°§·")
_WIDE_SIGNS: Final = re.compile(
    "[\u3000-\u303f\u30fb\u30fc\uff01-\uff5e·\u2026\u2014\u201c\u201d\u2018\u2019]"
)
_GLUED: Final = re.compile(r"\u20ac[^\W\d_]")  # how a Mac's Ä looks
_WITHIN_LATIN: Final = re.compile(r"[a-z][^\x00-\x7f][a-z]")
_KANA: Final = re.compile("[\u3041-\u30ff]")
_NUM_PROBE_BYTES: Final = 4096
_MIN_USUAL_FRAC: Final = 0.9
_MAX_CELLS_SHOWN: Final = 3
_MAX_LETTERS_SHOWN: Final = 24
_MAX_WORDS: Final = 1000  # of a text, checked for whether they are likely


def encoding_of(path: Path) -> str:
    """Return the encoding of a text by its first bytes; UTF-8 if they show no other."""
    with path.open("rb") as file:
        head = file.read(_NUM_PROBE_BYTES)
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    even, odd = head[0:-1:2], head[1::2]
    if even and odd.count(0) == len(odd):
        return "utf-16-le"
    if even and even.count(0) == len(even):
        return "utf-16-be"
    return "utf-8-sig"


def windows_text(path: Path) -> str | None:
    """Return the first word with an accent of a text in Windows-1252; None if it is not one.

    Each byte is a letter in Cyrillic and Asian code pages, too: words of mostly accents are not
    taken for words.
    """
    data = path.read_bytes()
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError:
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(WINDOWS)
            odd = _odd_words(text)
            if odd and not _GLUED.search(text) and all(_is_likely_latin(word) for word in odd):
                return odd[0]
    return None


def not_unicode(path: Path, encoding: str) -> DataError:
    """Return the error for a text that is not in its encoding, with how to convert it.

    Most bytes are letters in several code pages, so cells are shown in each of the likely ones.
    """
    data = path.read_bytes()
    name = encoding.removesuffix("-sig").upper()
    where = f"{path}: line {_first_bad_line(data, encoding)}"
    found = list(_likely(data)) if name == "UTF-8" else []
    if not found:
        return DataError(f"not {name} text", where=where, fix="Save it as UTF-8.")
    samples = [f"{some} in {one.iconv} ({one.language})" for one, some in found]
    table = printable(str(path.with_name(f"utf8-{path.name}")))
    source, utf8 = shlex.quote(printable(str(path))), shlex.quote(table)
    commands = [
        f"{one.iconv}: iconv -f {one.iconv} -t UTF-8 {source} > {utf8} && stepladder prepare {utf8}"
        for one, _ in found
    ]
    ask = (
        "If that is right, convert the file from "
        if len(found) == 1
        else "Convert it from the encoding in which they read right, from "
    )
    return DataError(
        f"not {name} text",
        where=where,
        why=f"Some of its cells are {'; '.join(samples)}.",
        fix=ask + "\nor from ".join(commands),
    )


@dataclass(frozen=True)
class _CodePage:
    """An encoding of one language or several, and which words are likely in it."""

    codec: str
    iconv: str
    language: str
    is_likely: Callable[[str], bool]


def _likely(data: bytes) -> Iterator[tuple[_CodePage, str]]:
    """Yield the encodings in which a text is likely, with some of its cells; the likeliest first.

    A text of Hangul alone, or with kana, is read as Chinese, too, but Chinese is not read as these.
    """
    for page in _CODE_PAGES:
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(page.codec)
            odd = _odd_words(text)[:_MAX_WORDS]
            usual = sum(page.is_likely(word) for word in odd)
            if odd and usual >= _MIN_USUAL_FRAC * len(odd):
                cells = (cell.strip()[:_MAX_LETTERS_SHOWN] for cell in re.split(r'[,;|"\s]', text))
                shown = dict.fromkeys(cell for cell in cells if not cell.isascii())
                yield page, name_some([repr(one) for one in list(shown)[:_MAX_CELLS_SHOWN]])


def _odd_words(text: str) -> list[str]:
    """Return the words and signs that are not ASCII."""
    return [word for word in re.findall(r"[^\W\d_]+|[^\w\s]", text) if not word.isascii()]


def _is_likely_latin(word: str) -> bool:
    if not word.isalpha():
        return word in _USUAL_SIGNS
    num_accents = sum(not letter.isascii() for letter in word)
    return 2 * num_accents <= len(word) or len(word) == 1


def _is_likely_polish(word: str) -> bool:
    """Return whether a word may be Central European, where more letters have accents."""
    num_accents = sum(not letter.isascii() for letter in word)
    return word in _USUAL_SIGNS or (word.isalpha() and 3 * num_accents <= 2 * len(word))


def _of_alphabet(first: str, last: str) -> Callable[[str], bool]:
    """Return a test of words: their letters are of an alphabet, in the case of words."""

    def is_likely(word: str) -> bool:
        are_letters = all(first <= letter <= last for letter in word)
        is_cased = word in {word.lower(), word.upper(), word.title()}
        return word in _USUAL_SIGNS or (are_letters and is_cased)

    return is_likely


def _in_rows(codec: str, first: int, last: int) -> Callable[[str], bool]:
    """Return a test of words: their letters are in the rows of a code page with the usual ones."""

    def is_likely(word: str) -> bool:
        others = [one for one in word if not one.isascii() and not _WIDE_SIGNS.fullmatch(one)]
        if _WITHIN_LATIN.search(word):
            return False
        with contextlib.suppress(UnicodeEncodeError):
            return all(first <= letter.encode(codec)[0] <= last for letter in others)
        return False

    return is_likely


def _is_likely_japanese(word: str) -> bool:
    return _is_usual_kanji(_KANA.sub("", word))


_is_usual_kanji: Final = _in_rows("shift_jis", 0x88, 0x97)
_CODE_PAGES: Final = (
    _CodePage("cp949", "CP949", "Korean", _in_rows("euc_kr", 0xB0, 0xC8)),
    _CodePage("cp932", "CP932", "Japanese", _is_likely_japanese),
    _CodePage("gb18030", "GB18030", "Chinese", _in_rows("gb2312", 0xB0, 0xD7)),
    _CodePage("cp950", "CP950", "traditional Chinese", _in_rows("big5", 0xA4, 0xC6)),
    _CodePage("cp1251", "WINDOWS-1251", "Cyrillic", _of_alphabet("\u0400", "\u045f")),
    _CodePage("koi8_r", "KOI8-R", "Cyrillic", _of_alphabet("\u0400", "\u045f")),
    _CodePage("cp1253", "WINDOWS-1253", "Greek", _of_alphabet("\u0386", "\u03ce")),
    _CodePage("cp1250", "WINDOWS-1250", "Central European", _is_likely_polish),
    _CodePage(WINDOWS, "WINDOWS-1252", "Western European", _is_likely_latin),
    _CodePage("mac_roman", "MACINTOSH", "Western European", _is_likely_latin),
)
"""Ordered so that the stricter test comes first."""


def _first_bad_line(data: bytes, encoding: str) -> int:
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        return data[: error.start].decode(encoding, "replace").count("\n") + 1
    return 1
