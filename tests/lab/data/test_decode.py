"""Every kind of image becomes 8 bits of gray or color; broken ones are named."""

import ast
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from lab.data.pictures import encoded, noise
from limits import limited
from PIL import EpsImagePlugin, Image

from flashpoint.lab.data.decode import FORMATS, decode, to_pixels
from flashpoint.lab.data.image_source import BrokenImageError

ROOT = Path(__file__).parents[3]


def test_rgb_and_gray_are_as_stored():
    color, gray = noise(), noise(mode="L")
    assert np.array_equal(
        to_pixels(decode(encoded(color), "x"), 3), np.asarray(color).transpose(2, 0, 1)
    )
    assert np.array_equal(to_pixels(decode(encoded(gray), "x"), 1)[0], np.asarray(gray))
    as_color = to_pixels(decode(encoded(gray), "x"), 3)
    assert all(np.array_equal(plane, np.asarray(gray)) for plane in as_color)


def test_alpha_is_dropped():
    color = noise()
    with_alpha = color.copy()
    with_alpha.putalpha(noise(mode="L", seed=1))
    assert np.array_equal(np.asarray(decode(encoded(with_alpha), "x")), np.asarray(color))
    gray = noise(mode="L")
    assert np.array_equal(np.asarray(decode(encoded(gray.convert("LA")), "x")), np.asarray(gray))


@pytest.mark.parametrize("transparent", [False, True])
def test_palettes_are_resolved(transparent):
    image = noise().quantize(16)
    if transparent:
        image.info["transparency"] = bytes(range(16))
    expected = np.asarray(image.convert("RGBA").convert("RGB"))
    assert np.array_equal(np.asarray(decode(encoded(image), "x")), expected)


def test_cmyk_is_converted():
    image = Image.new("CMYK", (4, 4), (0, 255, 255, 0))  # red ink
    red = to_pixels(decode(encoded(image, "TIFF"), "x"), 3)
    assert red.shape == (3, 4, 4)
    assert red[0].min() > 200
    assert red[1].max() < 50
    assert to_pixels(decode(encoded(image, "JPEG"), "x"), 3)[0].min() > 200


def test_sixteen_bits_keep_the_upper_eight():
    wide = np.array([[0, 255, 256], [511, 32768, 65535]], dtype=np.uint16)
    pixels = np.asarray(decode(encoded(Image.fromarray(wide)), "x"))
    assert pixels.tolist() == [[0, 0, 1], [1, 128, 255]]


def test_one_bit_is_black_and_white():
    image = Image.fromarray(np.array([[True, False]]))
    assert np.asarray(decode(encoded(image), "x")).tolist() == [[255, 0]]


def test_rotation_in_exif_is_ignored():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    buffer = io.BytesIO()
    noise((40, 30)).save(buffer, "JPEG", exif=exif)
    assert decode(buffer.getvalue(), "x").size == (40, 30)


def test_animation_is_its_first_frame():
    buffer = io.BytesIO()
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert int(to_pixels(decode(buffer.getvalue(), "x"), 1).max()) == 10


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_cut_files_are_broken(form):
    content = encoded(noise(), form)
    decode(content, "x")
    for part in (0, 10, len(content) // 2):
        with pytest.raises(BrokenImageError, match=r"^a/b\.img: "):
            decode(content[:part], "a/b.img")


def test_unknown_formats_give_the_same_reason_every_time():
    reasons = set()
    buffers = [bytearray(1 << n) for n in range(20)]  # so that nothing lies where it lay before
    for _ in buffers:
        with pytest.raises(BrokenImageError) as broken:
            decode(b"no image at all", "a/b.img")
        reasons.add(str(broken.value))
    assert reasons == {"a/b.img: not a known image format"}


def test_floating_point_pixels_are_refused():
    image = Image.fromarray(np.ones((2, 2), dtype=np.float32))
    with pytest.raises(BrokenImageError, match="no fixed range"):
        decode(encoded(image, "TIFF"), "x")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def test_postscript_is_no_image_and_no_program_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: asked.append("run"))
    monkeypatch.setattr(EpsImagePlugin, "has_ghostscript", lambda: asked.append("look"))
    assert Image.open(io.BytesIO(POSTSCRIPT)).format == "EPS"  # Pillow itself would take it
    with pytest.raises(BrokenImageError, match=r"^x\.png: not a known image format$"):
        decode(POSTSCRIPT, "x.png")
    assert not asked


@pytest.mark.parametrize("form", ["PDF", "EPS", "ICNS", "ICO", "TGA", "PCX", "SGI"])
def test_other_formats_of_pillow_are_refused(form):
    with pytest.raises(BrokenImageError, match=r"^x: not a known image format$"):
        decode(encoded(noise((64, 64)), form), "x")


@pytest.mark.parametrize("form", FORMATS)
def test_stated_formats_are_read(form):
    assert decode(encoded(noise(), form), "x").size == (40, 30)


def opened_by_pillow(tree):
    """Calls of ``open`` on Pillow's module, by whatever name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value).lower()
            if node.func.attr == "open" and ("pil" in owner or owner.endswith("image")):
                yield node


def test_every_image_is_opened_with_the_stated_formats():
    calls = [
        (file.name, call)
        for folder in ("src", "tools")
        for file in (ROOT / folder).rglob("*.py")
        if b"open(" in file.read_bytes()
        for call in opened_by_pillow(ast.parse(file.read_text()))
    ]
    assert [name for name, _ in calls] == ["decode.py"]
    for _, call in calls:
        assert {k.arg: ast.unparse(k.value) for k in call.keywords} == {"formats": "FORMATS"}
    for form in ("Image.open(x)", "PIL.Image.open(x)", "require_pillow().open(x)"):
        assert len(list(opened_by_pillow(ast.parse(form)))) == 1


def bomb(side):
    """A PNG of a few bytes that says it is this large."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [15_000, 100_000, 2**31 - 1])
def test_image_of_a_huge_declared_size_is_one_line(side):
    with limited(), pytest.raises(BrokenImageError, match=r"^x\.png: .+") as broken:
        decode(bomb(side), "x.png")
    assert "\n" not in str(broken.value)
