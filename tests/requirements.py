"""System packages that some tests need; `make test` installs them where it may, else these tests are skipped."""

import shutil
from pathlib import Path

import pytest

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def require_fashion_mnist() -> None:
    """Skip the test unless Debian's copy of Fashion-MNIST is installed."""
    if not FASHION_MNIST.exists():
        pytest.skip("needs Fashion-MNIST: apt-get install dataset-fashion-mnist")


def require_chromium() -> str:
    """Return the path of a Chromium browser; skip the test if there is none."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium fonts-liberation")
    return program
