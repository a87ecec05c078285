"""What some tests need from the system: `make test` installs packages if it may; tests without them are skipped."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NAMESPACE = ("unshare", "--map-root-user", "--mount")  # commands in it may mount disks that no other process sees


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


def require_mount_namespace() -> tuple[str, ...]:
    """Return the command prefix of a private mount namespace; skip the test if the system does not allow one."""
    if not _can_mount():
        pytest.skip("needs private mounts: install util-linux and allow user namespaces, or run as root")
    return NAMESPACE


@functools.cache
def _can_mount() -> bool:
    if shutil.which(NAMESPACE[0]) is None:
        return False
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
    return subprocess.run(command, capture_output=True).returncode == 0
