"""PNG sheets are decoded exactly, and damaged ones are rejected."""

import itertools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data.readers import png

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def paeth(a: int, b: int, c: int) -> int:
    """The specification's words: whichever of left, above and left above is nearest to a + b - c, in this order."""
    return min((a, b, c), key=lambda one: abs(a + b - c - one))


def filtered(picture: np.ndarray, filters: list[int]) -> bytes:
    """Byte by byte, as the specification has it."""
    height, width, channels = picture.shape
    lines = picture.reshape(height, width * channels).tolist()
    out = bytearray()
    for y, kind in enumerate(filters):
        out.append(kind)
        for x, value in enumerate(lines[y]):
            a = lines[y][x - channels] if x >= channels else 0
            b = lines[y - 1][x] if y else 0
            c = lines[y - 1][x - channels] if y and x >= channels else 0
            out.append((value - (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]) % 256)
    return bytes(out)


def header(width: int, height: int, channels: int = 3, depth: int = 8, interlaced: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, COLOURS[channels], 0, 0, interlaced))


def encoded(picture: np.ndarray, filters: list[int] | None = None, pieces: int = 1) -> bytes:
    height, width, channels = picture.shape
    packed = zlib.compress(filtered(picture, filters or [0] * height))
    cuts = np.linspace(0, len(packed), pieces + 1).astype(int)
    data = b"".join(chunk(b"IDAT", packed[start:end]) for start, end in itertools.pairwise(cuts))
    return SIGNATURE + header(width, height, channels) + chunk(b"tEXt", b"by\0hand") + data + chunk(b"IEND", b"")


@st.composite
def pictures(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    shape = (height, width, draw(st.integers(1, 4)))
    picture = np.frombuffer(draw(st.binary(min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), np.uint8)
    return picture.reshape(shape), draw(st.lists(st.integers(0, 4), min_size=height, max_size=height))


@given(pictures(), st.integers(1, 3))
def test_any_filters_in_any_order(tmp_path_factory: pytest.TempPathFactory, drawn: tuple, pieces: int) -> None:
    picture, filters = drawn
    path = tmp_path_factory.mktemp("png") / "a.png"
    path.write_bytes(encoded(picture, filters, pieces))
    assert np.array_equal(png.read(path), picture)


PICTURE = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)
WHOLE = encoded(PICTURE, [0, 1, 2, 3, 4, 4])
PACKED = zlib.compress(filtered(PICTURE, [0] * 6))


def around(data: bytes, head: bytes | None = None) -> bytes:
    return SIGNATURE + (header(5, 6) if head is None else head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "damaged or has another format"),
        (b"\x1f\x8b\x08", "cannot read"),
        (b"\xff\xd8\xff\xe0 JFIF", "damaged or has another format"),
        (WHOLE[:60], "Truncated File Read"),
        (WHOLE[:-20], "cannot read"),
        (WHOLE.replace(b"hand", b"HAND"), "damaged or has another format"),
        (SIGNATURE + chunk(b"IEND", b""), "damaged or has another format"),
        (around(b"nothing"), "broken data stream"),
        (around(PACKED, header(0, 6)), "damaged or has another format"),
        (around(PACKED, header(2**31, 2**31)), "Image size"),
        (around(PACKED, header(5, 6, depth=16)), "cannot read"),
        (around(PACKED, header(5, 6, channels=1, depth=16)), "8 bits per channel, got I;16"),
        (around(PACKED, header(5, 6, interlaced=1)), "cannot read"),
        (around(zlib.compress(b"\5" + bytes(15)), header(5, 1)), "unrecognized data stream"),
    ],
)
def test_damage(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence) as error:
        png.read(path)
    assert str(path) in str(error.value)
