"""Event files for TensorBoard, written by tensorboardX."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bespokefl.core.callback import RunInfo
from bespokefl.trackers.tracker import Tracker, flat_settings, new_directory


class TensorBoard(Tracker):
    """Writes event files to a new directory for each run; `tensorboard --logdir tensorboard` shows them.

    Parameters
    ----------
    dir : str, default='tensorboard'
        The parent of the runs' directories, in the current directory or in that of a deployed run.
    clients, name
        As for every tracker.
    """

    package = "tensorboardX"
    extra = "tensorboard"

    def __init__(self, *, dir: str = "tensorboard", clients: bool = False, name: str | None = None) -> None:
        super().__init__(clients=clients, name=name)
        self.dir = dir
        self._writer: Any = None

    def open(self, name: str, run: RunInfo, identity: Mapping[str, str], logged: int) -> dict[str, str]:
        # Not SummaryWriter: its queue and thread do not survive a fork, and its flush does not wait for the queue.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.summary import text

        folder = Path(identity["dir"]) if identity else new_directory(run.root / self.dir, name)
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("events.*")))  # two files of the same second would have the same name
        self._writer = EventsWriter(str(folder / "events"), f".{number}")
        if identity:  # rounds that were logged just before the run was killed, and are not known to be
            self._event(step=logged + 1, session_log=SessionLog(status=SessionLog.START))
        else:
            lines = [f"{key} = {value!r}" for key, value in flat_settings(run.settings).items()]
            self._event(step=0, summary=text("settings", "\n".join(f"    {line}" for line in lines)))
        self._writer.flush()
        return {"dir": str(folder.resolve())}

    def write(self, figures: Mapping[str, float], step: int) -> None:
        from tensorboardX.summary import scalar

        for name, value in figures.items():
            self._event(step=step, summary=scalar(name, value))
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()

    def _event(self, **values: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=time.time(), **values))
