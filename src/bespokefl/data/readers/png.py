"""PNG images; some packages store a whole data set as one image with a row of pixels for each example."""

import io
import warnings
from pathlib import Path

import numpy as np

from bespokefl.core.errors import said
from bespokefl.data.readers import files

KIND = "a PNG image"
MODES = ("L", "LA", "RGB", "RGBA")  # 8 bits per channel


def read(path: Path) -> np.ndarray:
    """The image as (height, width, channels), uint8."""
    from PIL import Image, UnidentifiedImageError  # not at the top: few data sets need it, and importing it takes time

    content = files.read_bytes(path, KIND)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                image.verify()  # checks checksums; after it, the image must be opened again
            with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                if image.mode not in MODES:
                    raise files.unreadable(
                        path, KIND, f"expected grey or RGB with 8 bits per channel, got {image.mode}"
                    )
                pixels = np.array(image)
    except UnidentifiedImageError:
        raise files.unreadable(path, KIND, "it is damaged or has another format") from None
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, Warning) as error:
        raise files.unreadable(path, KIND, said(error)) from None
    return pixels.reshape(*pixels.shape[:2], -1)
