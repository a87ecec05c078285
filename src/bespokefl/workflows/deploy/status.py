"""The status of a run of a deployment: a small JSON file in the run's directory."""

import json
import time
from pathlib import Path
from typing import Any

from bespokefl.core.files import write_text

STATUS = "status.json"
RESULT = "result"  # the directory with a finished run's result


def update_status(directory: Path, **changes: Any) -> None:
    status = read_status(directory) | {"time": time.time()} | changes
    write_text(directory / STATUS, json.dumps(status, indent=2) + "\n")


def read_status(directory: Path) -> dict[str, Any]:
    """The status of a run; empty if it has none yet."""
    try:
        status: dict[str, Any] = json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status
