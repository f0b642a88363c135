"""Find the keys of TFRecord files, and print the command that writes their pictures as files.

A file is a sequence of records: the length in 8 bytes, its checksum in 4, the content, and its
checksum in 4. A content is a `tf.train.Example` in the format of Protocol Buffers: a map of keys to
lists of bytes, floats or integers. Neither TensorFlow nor its messages are needed to read them.
"""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from stepladder.data.decoding.formats import SUFFIXES, name_format
from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.not_read.unread_formats import TFRECORD

_LABELS: Final = (
    *("image/class/text", "label_name", "class_name", "image/class/label", "label", "class"),
    *("target", "labels", "category", "species", "breed", "y"),
)
_BYTES, _INTS = 1, 3  # fields of a Feature
_MAX_FILES: Final = 20
_MAX_RECORDS: Final = 20
_MAX_LENGTH: Final = 1 << 28  # of a record
_READ: Final = (
    r"def V(b,i):\n n=k=0\n while 1:\n  n|=(b[i]&127)<<k;k+=7;i+=1\n  if b[i-1]<128:return n,i\n"
    r"def F(b):\n i=0\n while i<len(b):\n  t,i=V(b,i);k=t&7\n  if k==0:x,i=V(b,i)\n  else:\n"
    r"   n,i=V(b,i) if k==2 else (8 if k==1 else 4,i);x=b[i:i+n];i+=n\n  yield t>>3,x\n"
    r"def R(p):\n z=p.open(\"rb\").read(2)==b\"\\x1f\\x8b\"\n"
    r" f=(gzip.open if z else open)(p,\"rb\")\n"
    r" while h:=f.read(8):f.read(4);yield f.read(int.from_bytes(h,\"little\"));f.read(4)\n"
    r"def G(b):\n d={}\n for _,a in F(b):\n  for _,e in F(a):\n   m=dict(F(e))\n"
    r"   for t,l in F(m.get(2,b\"\")):d[m[1].decode()]=[x if t==1 or type(x) is int else V(x,0)[0] "
    r"for _,x in F(l) if t!=2 and x!=b\"\"]\n return d\n"
    r"def W(p,r,i,d):\n x,c=d.get(s[3]),d.get(s[4])\n if x and c and (type(c[0]) is bytes or "
    r"c[0]<2**63):\n  n=r.as_posix().lower()\n  q=\"test\" if \"test\" in n else \"val\" if "
    r"\"val\" in n else \"train\"\n"
    r"  f=o/q/(c[0].decode() if type(c[0]) is bytes else str(c[0])).replace(\"/\",\"_\")\n"
    r"  f.mkdir(parents=True,exist_ok=True)\n"
    r"  (f/(\"-\".join(r.parts)+\"-%d\"%i+(\".jpg\" if x[0][:2]==b\"\\xff\\xd8\" else \".png\")))"
    r".write_bytes(x[0])\n"
)
"""Python code: functions that read the examples of a file, and write one with its class."""
_SCRIPT: Final = (
    "import gzip,pathlib,re,sys;s=sys.argv;o=pathlib.Path(s[2]);a=pathlib.Path(s[1]);"
    f'exec("{_READ}");'
    '[W(p,p.relative_to(a),i,G(b)) for p in sorted(a.rglob("*")) if re.search(s[5],p.name) '
    "for i,b in enumerate(R(p))]"
)


@dataclass(frozen=True)
class _Keys:
    """The keys of the examples of some files.

    Attributes:
        found: all of them.
        image: that of the bytes of a picture file; empty if unknown.
        label: that of the class; empty if unknown.
    """

    found: tuple[str, ...]
    image: str
    label: str


def conversion_of_tfrecords(root: Path, files: Sequence[Path]) -> str | None:
    """Return how to write the pictures of TFRecord files as files; None if they cannot be read.

    Args:
        root: the source's folder.
        files: the files in it.
    """
    try:
        keys = _keys_of(files)
    except (OSError, ValueError, IndexError, EOFError):
        return None
    if keys is None:
        return None
    if not keys.image or not keys.label:
        what = "a class" if keys.image else "the bytes of a picture file"
        names = ", ".join(keys.found)
        return (
            f"Write the pictures in them as files, in one folder for each class. Their examples "
            f"have these keys, of which it is unknown which one has {what}: {names}. They can be "
            "read with the package tfrecord, without TensorFlow"
        )
    out = root.with_name(f"{root.name}-pictures")
    words = (keys.image, keys.label, TFRECORD)
    return (
        f"Write the pictures of the key {keys.image!r} as files, in folders by the key "
        f"{keys.label!r}: python -c {shlex.quote(_SCRIPT)} {typed(root)} {typed(out)} "
        f"{shlex.join(words)} && stepladder prepare {typed(out)}"
    )


def _keys_of(files: Sequence[Path]) -> _Keys | None:
    step = max(1, len(files) // _MAX_FILES)
    values: dict[str, list[bytes | int]] = {}
    for file in files[::step][:_MAX_FILES]:
        for record in islice(_records(file), _MAX_RECORDS):
            for key, found in _example(record).items():
                values.setdefault(key, []).extend(found[:1])
    if not values:
        return None
    images = [
        key
        for key, some in values.items()
        if some
        and all(isinstance(one, bytes) and name_format(one[:64]) in SUFFIXES for one in some)
    ]
    labels = [key for name in _LABELS for key in values if key.lower() == name and values[key]]
    image = next((key for key in images if key not in labels), "")
    return _Keys(tuple(sorted(values)), image, labels[0] if labels else "")


def _records(file: Path) -> Iterator[bytes]:
    with file.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(file) if is_packed else file.open("rb") as opened:
        while head := opened.read(12):
            length = int.from_bytes(head[:8], "little")
            if length > _MAX_LENGTH:
                raise ValueError(file.name)
            yield opened.read(length)
            opened.read(4)


def _example(record: bytes) -> dict[str, list[bytes | int]]:
    """Return the values of each key of an example; those of floats are left out."""
    found: dict[str, list[bytes | int]] = {}
    for _, features in _fields(record):
        for _, entry in _fields(_as_bytes(features)):
            pair = dict(_fields(_as_bytes(entry)))
            values = found.setdefault(_as_bytes(pair.get(1, b"")).decode(), [])
            for kind, items in _fields(_as_bytes(pair.get(2, b""))):
                for _, value in _fields(_as_bytes(items)):
                    if kind == _BYTES:
                        values.append(value)
                    elif kind == _INTS and value != b"":
                        values.append(value if isinstance(value, int) else _varint(value, 0)[0])
    return found


def _as_bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError(value)  # noqa: TRY004 (of the file's content, not of a type here)
    return value


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and the value of each field of a message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind not in {1, 2, 5}:
            raise ValueError(kind)
        length, at = _varint(message, at) if kind == 2 else (8 if kind == 1 else 4, at)
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
