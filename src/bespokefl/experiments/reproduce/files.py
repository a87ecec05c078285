"""A study's figures on disk: written aside, synced, renamed, so that an interrupted study goes on where it was."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(file: Path, content: Any) -> None:
    aside = file.with_suffix(".tmp")
    with aside.open("w") as handle:
        json.dump(content, handle)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(file)
