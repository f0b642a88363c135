"""Decode a picture file to a square of RGB pixels. Thread-safe and deterministic.

The bytes may be hostile: the format is detected by magic bytes, the size is checked before anything
is decoded, and only the decoder of that format is used: JPEG, PNG, NPY, or one of
`by_pillow.KINDS`.
"""

from __future__ import annotations

import struct
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from stepladder.config.choices import Fit
from stepladder.data.decoding import by_pillow
from stepladder.data.decoding.formats import (
    BadPictureError,
    check_png,
    exif_orientation,
    jpeg_orientation,
    name_format,
    read_npy_header,
    read_size,
)
from stepladder.data.decoding.resize import Pixels, crop_centre, fit_size, pad_white, resize, turn
from stepladder.data.decoding.samples import WHITE_8, SampleRange, rescale
from stepladder.data.decoding.traits import Trait, shape_trait

DECODE_VERSION = 1
"""Incremented whenever the same bytes would decode to different pixels."""

_ERRORS = (ValueError, OSError, SyntaxError, EOFError, struct.error, OverflowError)
_ERRORS_OF_PILLOW = (*_ERRORS, KeyError, IndexError, TypeError, RuntimeError, ZeroDivisionError)
_SURPLUS = "extraneous bytes before marker 0xd9"  # the end mark
_HARMLESS = (
    _SURPLUS,
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform code",
    "unknown JFIF revision number",
)
"""Warnings of libjpeg about files whose pixels are complete; Pillow ignores them as well."""
_DCT_FACTORS = (8, 4, 2)  # the other scales of libjpeg-turbo are slower than a full decode
_DCT_LEAD_IN_THIRDS = 4
"""A scaled decode has at least 4/3 of the sides needed, so that the antialiased resize does the
last third; pixels then differ from those of a full decode by less (3.3 of 255 on average, 120
photographs) than bilinear differs from Lanczos (3.6)."""


class Form(NamedTuple):
    """Facts from the header of a picture file.

    Attributes:
        kind: the format, such as JPEG.
        height, width: in pixels, before any rotation.
        orientation: EXIF orientation of a JPEG, 1 to 8.
        is_direct: whether libjpeg-turbo's simple interface can convert it to RGB.
    """

    kind: str
    height: int
    width: int
    orientation: int
    is_direct: bool


def find_form(data: bytes) -> Form:
    """Read the header of a picture file.

    Raises:
        BadPictureError: if it is not a supported format, or its header is incomplete.
    """
    if not data:
        raise BadPictureError("is empty (0 bytes)")
    kind = name_format(data)
    if kind in by_pillow.KINDS:
        try:
            height, width = by_pillow.picture_size(data, kind)
        except BadPictureError:
            raise
        except _errors() as error:
            raise _undecodable(error, kind) from None
        return Form(kind, height, width, 1, False)
    if kind not in {"JPEG", "PNG", "NPY"}:
        raise BadPictureError(f"is {kind}, not a supported picture format")
    height, width = read_size(data, kind)
    if kind != "JPEG":
        return Form(kind, height, width, 1, False)
    return Form(kind, height, width, jpeg_orientation(data), _is_direct(data))


def _is_direct(data: bytes) -> bool:
    import simplejpeg

    try:
        _, _, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # unsupported subsampling
        return False
    return colorspace not in {"CMYK", "YCCK"}


def decode_versions() -> dict[str, str]:
    """Return the versions that affect decoded pixels; torch without its build."""
    libraries = {
        name: version(name).partition("+")[0] for name in ("simplejpeg", "pillow", "torch")
    }
    return {"decode": str(DECODE_VERSION), **libraries}


def decode_picture(
    data: bytes,
    *,
    size: int,
    fit: Fit,
    max_pixels: int = 50_000_000,
    is_scaled: bool = True,
    white: float | None = None,
    out: Pixels | None = None,
    form: Form | None = None,
) -> Pixels:
    """Decode a picture to an upright square; keeps the aspect and puts transparency on white.

    Args:
        data: a picture file, or an NPY file of pixels.
        size: height and width of the result, in pixels.
        fit: how the picture is fitted to the square.
        max_pixels: maximum number of pixels, checked in the header.
        is_scaled: decode a JPEG that is much larger than needed at 1/2, 1/4 or 1/8 of its size, as
            `prepare` always does; pixels then differ slightly from those of a full decode.
        white: sample value that becomes 255, as in `--max-sample-value`; None: by the header.
        out: memory for the result, such as a row of a batch: uint8 (size, size, 3), C-contiguous.
            Undefined after an error.
        form: result of `find_form` for these bytes.

    Returns:
        uint8 RGB, shape (size, size, 3).

    Raises:
        BadPictureError: if it is not a picture, is damaged or too large; see `what`.
    """
    keeps_values = white is None or white >= WHITE_8
    is_ready = form is not None and form[1:] == (size, size, 1, True) and keeps_values
    if out is not None and is_ready:
        return _decode_in_place(data, out)
    content = examine_content(
        data,
        size=size,
        fit=fit,
        max_pixels=max_pixels,
        is_scaled=is_scaled,
        white=white,
        out=out,
        form=form,
    ).pixels
    if out is not None and _address(content) == _address(out):
        return out
    return pad_white(content, size, out=out)


class Content(NamedTuple):
    """A decoded picture and what its samples show.

    Attributes:
        pixels: uint8 RGB, shape (h, w, 3) with h and w at most the wanted size; not padded.
        decoded: the same before it was resized and rotated.
        samples: range of its samples, if they have more than 8 bits.
        traits: traits that only decoding shows.
        height, width: in pixels, of the file.
    """

    pixels: Pixels
    decoded: Pixels
    samples: SampleRange | None
    traits: frozenset[Trait]
    height: int
    width: int


def examine_content(
    data: bytes,
    *,
    size: int,
    fit: Fit,
    max_pixels: int = 50_000_000,
    is_scaled: bool = True,
    white: float | None = None,
    out: Pixels | None = None,
    form: Form | None = None,
) -> Content:
    """Decode a picture like decode_picture, without the white padding, and measure its samples.

    Args:
        out: may hold the pixels of the result, if the file is an upright JPEG of exactly that size.
    """
    form = form or find_form(data)
    kind, height, width, orientation, _ = form
    if height * width > max_pixels:
        raise BadPictureError(
            f"has {width}x{height} pixels, more than the limit of {max_pixels} (--max-pixels)"
        )
    try:
        if kind == "JPEG":
            opened = _decode_jpeg(data, form, size=size, fit=fit, is_scaled=is_scaled, out=out)
            opened = opened._replace(pixels=rescale(opened.pixels, white))
        elif kind == "NPY":
            opened = by_pillow.Opened(rescale(_read_npy(data), white))
        elif kind == "PNG":
            orientation = exif_orientation(check_png(data))
            opened = by_pillow.decode_png(data, chosen=white)
        else:
            opened, orientation = by_pillow.decode(data, kind, chosen=white)
            height, width = opened.pixels.shape[:2]
    except BadPictureError:
        raise
    except _errors() as error:
        raise _undecodable(error, kind) from None
    except MemoryError:
        raise BadPictureError(f"has {width}x{height} pixels, which do not fit in memory") from None
    pixels = opened.pixels
    if fit is Fit.CROP:
        pixels = crop_centre(pixels)
    # sides in file orientation: resizing first leaves fewer pixels to rotate
    out_height, out_width = fit_size(height, width, size=size, fit=fit)
    upright = turn(resize(pixels, out_height, out_width), orientation)
    traits = opened.traits | shape_trait(height, width)
    upright = np.ascontiguousarray(upright)
    return Content(upright, pixels, opened.samples, traits, height, width)


def _errors() -> tuple[type[Exception], ...]:
    """Return what decoders raise for a damaged file."""
    from PIL.Image import DecompressionBombError

    return (*_ERRORS_OF_PILLOW, DecompressionBombError)


def _undecodable(error: Exception, kind: str) -> BadPictureError:
    text = " ".join(str(error).split())
    if isinstance(error, struct.error | IndexError):
        text = "it is truncated"
    if text == "unknown pixel mode":
        text = "samples of this type are not supported; save it with 8 or 16 bits"
    name = f" as {kind}" if kind in by_pillow.KINDS else ""
    return BadPictureError(f"cannot be decoded{name}: {text}")


def _decode_in_place(data: bytes, out: Pixels) -> Pixels:
    """Decode an upright JPEG of the size of `out`, with minimal time under the GIL."""
    import simplejpeg

    try:
        simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out, strict=True)
    except _ERRORS as error:
        try:
            out[:] = _despite(error, data).pixels
        except _errors():
            raise BadPictureError(f"cannot be decoded: {error}") from None
    return out


def _despite(error: Exception, data: bytes) -> by_pillow.Opened:
    """Decode a JPEG in which libjpeg found something that does not change its pixels.

    Surplus bytes before the end mark are often padding. They may also be the rest of a damaged
    scan, so the picture is marked.

    Args:
        error: what libjpeg found first; raised again if the pixels may be incomplete.
        data: the file. Pillow decodes it, and raises an error if it is truncated.
    """
    if not any(words in str(error) for words in _HARMLESS):
        raise error
    traits = {Trait.EXTRA_BYTES} if _SURPLUS in str(error) else set()
    return by_pillow.Opened(by_pillow.decode_jpeg(data), None, frozenset(traits))


def _address(pixels: Pixels) -> int:
    address: int = pixels.__array_interface__["data"][0]
    return address


def _decode_jpeg(
    data: bytes, form: Form, *, size: int, fit: Fit, is_scaled: bool, out: Pixels | None
) -> by_pillow.Opened:
    import simplejpeg

    if not form.is_direct:
        return by_pillow.Opened(by_pillow.decode_jpeg(data))
    height, width = form.height, form.width
    governing = max(height, width) if fit is Fit.PAD else min(height, width)
    factors = _DCT_FACTORS if is_scaled else ()
    factor = next((f for f in factors if 3 * governing >= _DCT_LEAD_IN_THIRDS * f * size), 1)
    fits_out = out is not None and (height, width) == out.shape[:2] and form.orientation == 1
    # strict: a truncated or damaged JPEG is an error instead of grey blocks
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB",
            min_height=-(-height // factor),
            min_width=-(-width // factor),
            buffer=out if fits_out and factor == 1 else None,
            strict=True,
        )
    except ValueError as error:
        return _despite(error, data)
    return by_pillow.Opened(pixels)


def _read_npy(data: bytes) -> Pixels:
    header = read_npy_header(data)
    shape = header.height, header.width, header.num_channels
    values = np.frombuffer(data, dtype=np.uint8, offset=header.start)
    pixels = values.reshape(shape, order="F" if header.is_fortran else "C")
    return np.array(np.broadcast_to(pixels, (*shape[:2], 3)), order="C")
