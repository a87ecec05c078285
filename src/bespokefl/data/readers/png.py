"""PNG pictures, which is how some packages carry a whole data set: one sheet, a row for each example.

Read with zlib and numpy alone, so that nothing more must be installed: 8 bits per channel, not interlaced, which is
what sheets are; others are refused.
"""

import zlib
from pathlib import Path

import numpy as np

from bespokefl.data.readers import files

KIND = "a PNG picture"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type: grey, RGB, either with alpha
SUB, UP, AVERAGE, PAETH = 1, 2, 3, 4  # how a row was filtered before it was packed


def read(path: Path) -> np.ndarray:
    """The picture as (height, width, channels), uint8."""
    header, packed = _chunks(path)
    width, height = (int.from_bytes(header[at : at + 4], "big") for at in (0, 4))
    depth, colour, method, filters, interlaced = header[8:13]
    if depth != 8 or colour not in CHANNELS or method or filters or interlaced:
        raise files.damaged(path, KIND, "only grey or RGB with 8 bits per channel, not interlaced, is read here")
    channels = CHANNELS[colour]
    size = height * (1 + width * channels)
    if not 0 < size <= files.LIMIT or not width:
        raise files.damaged(path, KIND, f"it claims to have {width} × {height} pixels")
    try:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise files.damaged(path, KIND, str(error)) from None
    if len(unpacked) != size or not unpacker.eof:
        raise files.damaged(path, KIND, f"it should hold {size:,} bytes, but has another number of them")
    rows = np.frombuffer(unpacked, np.uint8).reshape(height, 1 + width * channels)
    if rows[:, 0].max() > PAETH:
        raise files.damaged(path, KIND, f"a row has the unknown filter {rows[:, 0].max()}")
    return _unfilter(rows[:, 0], rows[:, 1:].reshape(height, width, channels))


def _chunks(path: Path) -> tuple[bytes, bytes]:
    """The header and the packed pixels."""
    found = files.content(path, KIND)
    if not found.startswith(SIGNATURE):
        raise files.damaged(path, KIND, f"it begins with {found[:8]!r}")
    header, packed, at = b"", [], len(SIGNATURE)
    while True:
        size, kind = int.from_bytes(found[at : at + 4], "big"), found[at + 4 : at + 8]
        body, checksum = found[at + 8 : at + 8 + size], found[at + 8 + size : at + 12 + size]
        if len(checksum) < 4:
            raise files.damaged(path, KIND, "it is cut off")
        if zlib.crc32(kind + body) != int.from_bytes(checksum, "big"):
            raise files.damaged(path, KIND, "a checksum in it is wrong")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            break
        at += 12 + size
    if len(header) != 13:
        raise files.damaged(path, KIND, "it has no header")
    return header, b"".join(packed)


def _unfilter(filters: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Undo the filters, which keep each byte as its difference from its neighbours to the left and above.

    Rows without filter, or with the first, do not look up: they are done at once. The others come in stretches, each
    below a row that is done. Pixels on one diagonal of a stretch depend on earlier diagonals only, so a diagonal of all
    stretches together is one step of vector arithmetic.
    """
    height, width, channels = rows.shape
    wide = width + 1
    framed = np.zeros((height + 1, wide, channels), dtype=np.int16)  # with zeros to the left and above
    framed[1:, 1:] = rows
    framed[1:, 1:][filters == SUB] = np.cumsum(rows[filters == SUB], axis=1, dtype=np.uint8)
    pixels = framed.reshape(-1, channels)

    looks_up = np.flatnonzero(filters >= UP)
    first = np.flatnonzero(np.diff(looks_up, prepend=-2) > 1)  # of each stretch
    depth = np.arange(len(looks_up)) - np.repeat(first, np.diff(first, append=len(looks_up)))
    order = np.argsort(depth, kind="stable")
    looks_up, depth = looks_up[order], depth[order]
    start = (looks_up + 1) * wide + 1 - depth  # where diagonal 0 would cross the row
    up, average, paeth = (filters[looks_up][:, np.newaxis] == kind for kind in (UP, AVERAGE, PAETH))
    steps = depth[-1] + width if len(depth) else 0
    ends = np.searchsorted(depth, np.arange(steps), side="right")
    begins = np.searchsorted(depth, np.arange(steps) - width, side="right")
    for step, (low, high) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        at = start[low:high] + step
        a, b, c = pixels[at - 1], pixels[at - wide], pixels[at - wide - 1]  # left, above, left above
        to_a, to_b, to_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
        nearest = np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
        guess = b * up[low:high] + ((a + b) >> 1) * average[low:high] + nearest * paeth[low:high]
        pixels[at] = (pixels[at] + guess) & 255
    return framed[1:, 1:].astype(np.uint8)
