"""Every kind of image becomes 8 bits of grey or colour; broken ones are named."""

import io

import numpy as np
import pytest
from data.pictures import encoded, noise
from PIL import Image

from flashpoint.data.decode import decode, to_pixels
from flashpoint.data.source import BrokenImageError


def test_rgb_and_grey_are_as_stored():
    colour, grey = noise(), noise(mode="L")
    assert np.array_equal(
        to_pixels(decode(encoded(colour), "x"), 3), np.asarray(colour).transpose(2, 0, 1)
    )
    assert np.array_equal(to_pixels(decode(encoded(grey), "x"), 1)[0], np.asarray(grey))
    as_colour = to_pixels(decode(encoded(grey), "x"), 3)
    assert all(np.array_equal(plane, np.asarray(grey)) for plane in as_colour)


def test_alpha_is_dropped():
    colour = noise()
    with_alpha = colour.copy()
    with_alpha.putalpha(noise(mode="L", seed=1))
    assert np.array_equal(np.asarray(decode(encoded(with_alpha), "x")), np.asarray(colour))
    grey = noise(mode="L")
    assert np.array_equal(np.asarray(decode(encoded(grey.convert("LA")), "x")), np.asarray(grey))


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
