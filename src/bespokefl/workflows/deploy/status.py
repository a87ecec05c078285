"""What is known of a run of a deployment while it goes on: one small file, for whoever asks."""

import json
import time
from pathlib import Path
from typing import Any

from bespokefl.core.files import write_text

STATUS = "status.json"
RESULT = "result"  # the folder in which a run's result is in the end


def tell(place: Path, **news: Any) -> None:
    write_text(place / STATUS, json.dumps(told(place) | {"time": time.time()} | news, indent=2) + "\n")


def told(place: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((place / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
