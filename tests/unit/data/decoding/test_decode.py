"""Either decoder turns any JPEG or PNG into the same upright RGB square, and rejects the rest."""

from __future__ import annotations

import importlib.util
import io
import struct
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps, features

from stepladder.config.choices import Fit
from stepladder.data.decoding.decode import (
    decode_picture,
    examine_content,
    find_form,
)
from stepladder.data.decoding.formats import (
    BadPictureError,
    exif_orientation,
    jpeg_orientation,
    name_format,
)
from stepladder.data.decoding.traits import Trait, find_traits


def photo(height: int = 60, width: int = 80) -> Image.Image:
    """Draw smooth colors with a dark block in one corner, so that all orientations differ."""
    down, right = np.mgrid[0:height, 0:width]
    red = 250 * down / height
    green = 250 * right / width
    blue = 125 + 100 * np.sin(right / 9) * np.cos(down / 7)
    pixels = np.stack([red, green, blue], axis=-1).astype(np.uint8)
    pixels[: height // 4, : width // 4] = 20
    return Image.fromarray(pixels)


def encode(picture: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}), **options)
    return buffer.getvalue()


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first.astype(int) - second.astype(int)).mean())


def as_is(data: bytes, size: int = 80) -> np.ndarray:
    return examine_content(data, size=size, fit=Fit.PAD).pixels


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_pad_keeps_the_aspect_and_centres_on_white() -> None:
    square = decode_picture(encode(photo(60, 80), "PNG"), size=80, fit=Fit.PAD)
    assert square.shape == (80, 80, 3)
    assert square.dtype == np.uint8
    assert (square[:10] == 255).all()
    assert (square[70:] == 255).all()
    np.testing.assert_array_equal(square[10:70], np.asarray(photo(60, 80)))


def test_crop_takes_the_centre() -> None:
    square = decode_picture(encode(photo(60, 80), "PNG"), size=60, fit=Fit.CROP)
    np.testing.assert_array_equal(square, np.asarray(photo(60, 80))[:, 10:70])


def test_small_pictures_are_enlarged_to_fill_the_square() -> None:
    content = examine_content(encode(photo(6, 8), "PNG"), size=32, fit=Fit.PAD).pixels
    assert content.shape == (24, 32, 3)


def test_resize_is_antialiased_as_pillow_does_it() -> None:
    stripes = np.zeros((120, 120, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    shrunk = examine_content(encode(Image.fromarray(stripes), "PNG"), size=30, fit=Fit.PAD).pixels
    want = np.asarray(Image.fromarray(stripes).resize((30, 30), Image.Resampling.BILINEAR))
    assert difference(shrunk, want) < 1
    assert abs(float(shrunk.mean()) - 127.5) < 2  # without antialiasing: stripes or one color


@pytest.mark.parametrize("height_width", [(1, 500), (500, 1), (3, 7)])
@pytest.mark.parametrize("fit", list(Fit))
def test_any_shape_becomes_the_square(height_width: tuple[int, int], fit: Fit) -> None:
    data = encode(photo(*height_width), "PNG")
    assert decode_picture(data, size=16, fit=fit).shape == (16, 16, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_orientation_is_applied_once(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(), kind, exif=exif)
    want = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    got = as_is(data)
    assert got.shape == want.shape
    assert difference(got, want) < 2


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_found_in_either_byte_order(order: str) -> None:
    mark = b"II" if order == "<" else b"MM"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, 6, 0)
    tiff = mark + struct.pack(f"{order}HI", 42, 8) + struct.pack(f"{order}H", 1) + entry
    assert exif_orientation(tiff) == 6


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        b"XX*\0\x08\0\0\0",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0",
    ],
)
def test_corrupt_exif_is_ignored(exif: bytes) -> None:
    assert exif_orientation(exif) == 1
    plain = encode(photo())
    body = b"Exif\0\0" + exif
    data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + plain[2:]
    assert jpeg_orientation(data) == 1
    np.testing.assert_array_equal(as_is(data), as_is(plain))


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_modes_match_pillow(mode: str, progressive: bool) -> None:
    data = encode(photo().convert(mode), progressive=progressive)
    want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert difference(as_is(data), want) < 2


def test_adobe_inverted_cmyk_gives_the_colours_that_were_put_in() -> None:
    ink = photo().convert("CMYK")
    data = simplejpeg.encode_jpeg(
        255 - np.asarray(ink), colorspace="CMYK", quality=95, colorsubsampling="444"
    )
    assert b"Adobe" in data
    assert difference(as_is(data), np.asarray(ink.convert("RGB"))) < 4


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "LA", "RGBA"])
def test_png_modes_become_rgb(mode: str) -> None:
    picture = photo().convert(mode)
    want = np.asarray(picture.convert("RGB"))
    np.testing.assert_array_equal(as_is(encode(picture, "PNG")), want)


def test_16_bit_grey_keeps_its_range() -> None:
    grey = np.linspace(0, 65535, 80 * 60).reshape(60, 80).astype(np.uint16)
    content = as_is(encode(Image.fromarray(grey), "PNG"))
    np.testing.assert_array_equal(content[..., 0], (grey >> 8).astype(np.uint8))


def test_16_bit_colour_takes_the_high_byte() -> None:
    deep = (np.asarray(photo()).astype(np.uint16) * 256 + 77).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in deep)
    header = struct.pack(">IIBBBBB", 80, 60, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)
    np.testing.assert_array_equal(as_is(data), np.asarray(photo()))


def test_transparency_shows_white() -> None:
    picture = photo().convert("RGBA")
    alpha = np.full((60, 80), 255, dtype=np.uint8)
    alpha[:, 40:] = 0
    picture.putalpha(Image.fromarray(alpha))
    content = as_is(encode(picture, "PNG"))
    assert (content[:, 40:] == 255).all()
    np.testing.assert_array_equal(content[:, :40], np.asarray(photo())[:, :40])


def test_transparent_palette_colour_shows_white() -> None:
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((0, 0), 0)
    content = as_is(encode(palette, "PNG", transparency=1), size=4)
    assert tuple(content[0, 0]) == (10, 20, 30)
    assert (content[1:] == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("fit", list(Fit))
@pytest.mark.parametrize(
    ("height_width", "orientation"),
    [((64, 64), 1), ((64, 64), 6), ((48, 64), 1), ((64, 48), 8), ((200, 150), 1), ((9, 7), 3)],
)
def test_a_row_of_a_batch_is_filled_in_place(
    kind: str, fit: Fit, height_width: tuple[int, int], orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(*height_width), kind, exif=exif)
    batch = np.full((3, 64, 64, 3), 7, dtype=np.uint8)
    result = decode_picture(data, size=64, fit=fit, out=batch[1])
    assert np.shares_memory(result, batch)
    assert np.array_equal(batch[1], decode_picture(data, size=64, fit=fit))
    assert (batch[[0, 2]] == 7).all()


@pytest.mark.parametrize("fit", list(Fit))
def test_scaled_decode_of_a_large_jpeg_stays_near_the_full_one(fit: Fit) -> None:
    large = photo(600, 800)
    data = encode(large)
    got = decode_picture(data, size=64, fit=fit)
    full = decode_picture(encode(large, "PNG"), size=64, fit=fit)
    assert got.shape == full.shape
    assert difference(got, full) < 3


def test_size_is_read_from_the_header() -> None:
    assert find_form(encode(photo(60, 80)))[1:3] == (60, 80)
    assert find_form(encode(photo(60, 80), "PNG"))[1:3] == (60, 80)


@pytest.mark.parametrize(
    ("kind", "name"), [("JPEG2000", "JPEG 2000"), ("TGA", "unknown"), ("ICO", "unknown")]
)
def test_other_formats_are_refused_by_name(kind: str, name: str) -> None:
    data = encode(photo(), kind)
    assert name in name_format(data)
    with pytest.raises(BadPictureError, match=f"is .*{name}.*, not a supported picture format"):
        decode_picture(data, size=16, fit=Fit.PAD)


@pytest.mark.parametrize(
    ("kind", "name", "tolerance"),
    [
        ("GIF", "GIF", 6),
        ("WEBP", "WebP", 3),
        ("BMP", "BMP", 0),
        ("TIFF", "TIFF", 0),
        ("AVIF", "AVIF", 3),
        ("PPM", "PPM", 0),
    ],
)
def test_other_formats_give_the_pixels_of_their_first_frame(
    kind: str, name: str, tolerance: float
) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    data = encode(photo(), kind)
    assert name_format(data) == name
    assert find_form(data)[:3] == (name, 60, 80)
    assert difference(as_is(data), np.asarray(photo())) <= tolerance
    if kind in {"GIF", "WEBP", "TIFF"}:
        frames = [photo(), photo().rotate(180)]
        several = encode(frames[0], kind, save_all=True, append_images=frames[1:])
        assert difference(as_is(several), np.asarray(photo())) <= 6


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM"])
def test_the_pixel_limit_holds_for_other_formats_and_half_of_one_is_refused(kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    data = encode(photo(), kind)
    with pytest.raises(BadPictureError, match="more than the limit of 4799"):
        decode_picture(data, size=16, fit=Fit.PAD, max_pixels=4799)
    for share in (0.02, 0.5):
        with pytest.raises(BadPictureError) as caught:
            decode_picture(data[: int(share * len(data))], size=16, fit=Fit.PAD)
        assert "\n" not in caught.value.what


@pytest.mark.parametrize("orientation", [3, 6, 8])
@pytest.mark.parametrize("kind", ["WEBP", "TIFF"])
def test_other_formats_are_turned_upright(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(), kind, exif=exif)
    want = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert as_is(data).shape == want.shape
    assert difference(as_is(data), want) < 2


def test_heic_is_read_if_its_decoder_is_installed_and_else_named() -> None:
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    assert name_format(heic) == "HEIC"
    if importlib.util.find_spec("pillow_heif") is None:
        with pytest.raises(BadPictureError, match=r"pip install 'stepladder\[heif\]'"):
            decode_picture(heic, size=16, fit=Fit.PAD)
        return
    import pillow_heif

    buffer = io.BytesIO()
    pillow_heif.from_pillow(photo()).save(buffer, quality=95)
    assert difference(as_is(buffer.getvalue()), np.asarray(photo())) < 4


@pytest.mark.parametrize("kind", [b"iCCP", b"zTXt", b"iTXt", b"tEXt"])
def test_large_or_damaged_metadata_of_a_png_does_not_matter(kind: bytes) -> None:
    plain = encode(photo(), "PNG")
    packed = zlib.compress(bytes(2_000_000))
    body = {
        b"iCCP": b"press\0\0" + packed,
        b"zTXt": b"prompt\0\0" + packed,
        b"iTXt": b"workflow\0\1\0\0\0" + packed,
        b"tEXt": b"workflow\0" + bytes(2_000_000),
    }[kind]
    chunk = png_chunk(kind, body)
    for some in (chunk, chunk[:-1] + b"?"):
        np.testing.assert_array_equal(as_is(plain[:33] + some + plain[33:]), as_is(plain))


def deep_png(samples: np.ndarray, *, bits: int | None = None) -> bytes:
    """Encode uint16 samples (h, w) or (h, w, c), with a chunk sBIT if `bits` is given."""
    height, width = samples.shape[:2]
    channels = samples.shape[2] if samples.ndim == 3 else 1
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    if bits is not None:
        chunks.insert(1, (b"sBIT", bytes([bits] * channels)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_12_bits_in_16_are_scaled_if_the_header_or_the_user_says_so(channels: int) -> None:
    rng = np.random.default_rng(channels)
    samples = rng.integers(0, 4096, (60, 80, channels)).astype(np.uint16)
    if channels % 2 == 0:
        samples[..., -1] = 65535
    samples = samples[..., 0] if channels == 1 else samples
    colours = samples[..., : channels - (channels % 2 == 0)] if channels > 1 else samples
    want = (colours * (255 / 4095) + 0.5).astype(np.uint8)
    grey_or_rgb = want if channels >= 3 else np.broadcast_to(want.reshape(60, 80, 1), (60, 80, 3))
    size = {"size": 80, "fit": Fit.PAD}
    for content in (
        examine_content(deep_png(samples, bits=12), **size),
        examine_content(deep_png(samples), **size, white=4095),
    ):
        np.testing.assert_array_equal(content.pixels, grey_or_rgb)
        assert content.samples == (False, 4095, colours.min(), colours.max())
    kept = examine_content(deep_png(samples), **size)
    assert kept.pixels.max() == 15 or channels % 2 == 0
    assert kept.samples == (False, 65535, colours.min(), colours.max())


def test_significant_bits_by_the_standard_change_nothing() -> None:
    scaled = (np.arange(60 * 80).reshape(60, 80) % 4096).astype(np.uint16) << 4
    np.testing.assert_array_equal(as_is(deep_png(scaled, bits=12)), as_is(deep_png(scaled)))


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_deep_tiff_is_scaled_as_its_header_says(compression: str) -> None:
    grey = np.asarray(photo().convert("L")).astype(int)
    deep = Image.fromarray(grey.astype(np.uint16) * 16)
    size = {"size": 80, "fit": Fit.PAD}
    options = {"compression": compression}
    plain = examine_content(encode(deep, "TIFF", **options), **size)
    assert plain.samples == (False, 65535, grey.min() * 16, grey.max() * 16)
    assert plain.pixels.max() == grey.max() // 16
    if compression != "raw":  # Pillow then writes no such tags
        return
    told = examine_content(encode(deep, "TIFF", **options, tiffinfo={281: 4095}), **size)
    assert difference(told.pixels[..., 0], grey) <= 1
    inverse = examine_content(encode(deep, "TIFF", **options, tiffinfo={281: 4095, 262: 0}), **size)
    assert difference(255 - inverse.pixels[..., 0], grey) <= 1


def test_float_tiff_has_white_at_1_or_where_the_user_says() -> None:
    grey = np.asarray(photo().convert("L")).astype(int)
    unit = encode(Image.fromarray(grey.astype(np.float32) / 255), "TIFF")
    np.testing.assert_array_equal(as_is(unit)[..., 0], grey)
    large = encode(Image.fromarray(grey.astype(np.float32) * 4), "TIFF")
    content = examine_content(large, size=80, fit=Fit.PAD, white=1020)
    np.testing.assert_array_equal(content.pixels[..., 0], grey)
    assert content.samples == (True, 1020, grey.min() * 4, grey.max() * 4)
    empty = np.full((60, 80), np.nan, dtype=np.float32)
    with pytest.raises(BadPictureError, match="NaN"):
        as_is(encode(Image.fromarray(empty), "TIFF"))


def test_traits_that_lose_range_are_found() -> None:
    few = examine_content(encode(photo().quantize(8), "PNG"), size=80, fit=Fit.PAD)
    assert Trait.FEW_COLOURS in few.traits
    ink = simplejpeg.encode_jpeg(
        np.asarray(photo().convert("CMYK")), colorspace="CMYK", colorsubsampling="444"
    )
    assert {Trait.CMYK, Trait.INVERTED} <= find_traits(ink, "x.jpg") | {Trait.CMYK}


def test_html_is_refused_by_name() -> None:
    with pytest.raises(BadPictureError, match="HTML"):
        decode_picture(b"\n<!DOCTYPE html><html>404</html>", size=16, fit=Fit.PAD)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.95])
def test_half_a_file_is_refused(kind: str, share: float) -> None:
    data = encode(photo(), kind)
    with pytest.raises(BadPictureError) as caught:
        decode_picture(data[: int(share * len(data))], size=16, fit=Fit.PAD)
    assert "\n" not in caught.value.what


def test_jpeg_without_its_end_is_refused() -> None:
    with pytest.raises(BadPictureError, match=r"[Pp]remature end"):
        decode_picture(encode(photo())[:-2], size=16, fit=Fit.PAD)


def changed(data: bytes, marker: bytes, offset: int, value: int) -> bytes:
    """Set a byte of a JPEG, counted from a marker."""
    whole = bytearray(data)
    whole[data.index(marker) + offset] = value
    return bytes(whole)


HARMLESS = {
    "bytes before the end": lambda data: data[:-2] + bytes(range(100)) + data[-2:],
    "parameters of the scan": lambda data: changed(data, b"\xff\xda", 12, 0),
    "version of JFIF": lambda data: changed(data, b"JFIF", 5, 9),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_jpeg_whose_pixels_are_complete_is_read_as_pillow_does(kind: str) -> None:
    data = encode(photo())
    odd = HARMLESS[kind](data)
    found = examine_content(odd, size=80, fit=Fit.PAD)
    assert np.array_equal(found.pixels, as_is(data))
    assert (Trait.EXTRA_BYTES in found.traits) is (kind == "bytes before the end")
    square = encode(photo(80, 80))
    out = np.zeros((80, 80, 3), dtype=np.uint8)
    odd = HARMLESS[kind](square)
    decode_picture(odd, size=80, fit=Fit.PAD, out=out, form=find_form(odd))
    assert np.array_equal(out, decode_picture(square, size=80, fit=Fit.PAD))


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_half_of_such_a_jpeg_is_refused(kind: str, share: float) -> None:
    data = HARMLESS[kind](encode(photo()))
    with pytest.raises(BadPictureError):
        decode_picture(data[: int(share * (len(data) - 100))], size=16, fit=Fit.PAD)


def test_a_jpeg_with_half_its_scan_and_an_end_is_refused() -> None:
    data = encode(photo())
    with pytest.raises(BadPictureError, match="premature end"):
        decode_picture(data[: len(data) // 2] + data[-2:], size=16, fit=Fit.PAD)


def test_every_flipped_byte_of_png_pixels_is_found() -> None:
    data = encode(photo(), "PNG")
    start = data.index(b"IDAT") + 4
    for position in range(start, len(data) - 16, 97):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        with pytest.raises(BadPictureError):
            decode_picture(bytes(flipped), size=16, fit=Fit.PAD)


def jpeg_bomb() -> bytes:
    data = encode(photo())
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", 65500, 65500) + data[at + 4 :]


def png_bomb() -> bytes:
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("data", [jpeg_bomb(), png_bomb()], ids=["jpeg", "png"])
def test_bombs_are_refused_before_they_are_decoded(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(BadPictureError, match="more than the limit of 50000000"):
        decode_picture(data, size=16, fit=Fit.PAD)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_the_pixel_limit_is_the_users() -> None:
    data = encode(photo(60, 80))
    decode_picture(data, size=16, fit=Fit.PAD, max_pixels=4800)
    with pytest.raises(BadPictureError):
        decode_picture(data, size=16, fit=Fit.PAD, max_pixels=4799)


def test_threads_decode_the_same_pixels() -> None:
    files = [encode(photo(60 + i, 90), kind) for i in range(20) for kind in ("JPEG", "PNG")]
    alone = [decode_picture(data, size=48, fit=Fit.PAD) for data in files]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda data: decode_picture(data, size=48, fit=Fit.PAD), files))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
