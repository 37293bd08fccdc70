"""Which JPEG files a decoder in hardware takes."""

import io

import pytest
from lab.data.pictures import encoded, noise

from flashpoint.lab.data.jpeg_header import baseline_size

PICTURE = noise((40, 30))


def jpeg(picture=PICTURE, **options):
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("sampling", [0, 1, 2])
def test_baseline_color_has_its_size(sampling):
    assert baseline_size(jpeg(subsampling=sampling)) == (40, 30)
    assert baseline_size(jpeg(subsampling=sampling, comment="a word") + b"\0\0") == (40, 30)


@pytest.mark.parametrize(
    "content",
    [
        jpeg(progressive=True),
        jpeg(PICTURE.convert("L")),
        jpeg(PICTURE.convert("CMYK")),
        jpeg(keep_rgb=True),
        encoded(PICTURE),
        jpeg()[:-200],
        jpeg()[:10] + b"\xff\xd9",
        b"",
    ],
    ids=["progressive", "gray", "cmyk", "rgb", "png", "cut", "head", "empty"],
)
def test_all_others_have_none(content):
    assert baseline_size(content) is None
