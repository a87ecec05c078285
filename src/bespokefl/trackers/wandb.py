"""Runs of Weights & Biases."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bespokefl.core.callback import FAILED, RunInfo
from bespokefl.trackers.tracker import Tracker, flat_settings

OFFLINE = "offline"


class WandB(Tracker):
    """Logs to Weights & Biases: to files that `wandb sync` uploads, or to its server with mode="online".

    Parameters
    ----------
    project : str, default='bespoke'
        The project of the run.
    mode : str or None, default=None
        "offline" or "online"; None: the environment variable WANDB_MODE, else offline.
    dir : str or None, default=None
        The parent of the directory wandb; None: the environment variable WANDB_DIR, else the current directory or that
        of a deployed run.
    clients, name
        As for every tracker.
    """

    package = "wandb"
    extra = "wandb"

    def __init__(
        self,
        *,
        project: str = "bespoke",
        mode: str | None = None,
        dir: str | None = None,
        clients: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(clients=clients, name=name)
        self.project, self.mode, self.dir = project, mode or os.environ.get("WANDB_MODE") or OFFLINE, dir
        self._run: Any = None

    def open(self, name: str, run: RunInfo, identity: Mapping[str, str], logged: int) -> dict[str, str]:
        if self.mode == OFFLINE:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would call another server
        import wandb

        folder = identity.get("dir") or self.dir or os.environ.get("WANDB_DIR") or str(run.root)
        folder = str(Path(folder).resolve())
        id = identity.get("id") or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=self.project,
            name=name,
            id=id,
            resume=None if self.mode == OFFLINE else "allow",  # files of the same id become one run when synchronized
            mode=self.mode,  # type: ignore[arg-type]
            dir=folder,
            config=flat_settings(run.settings),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        return {"dir": folder, "id": id}

    def write(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def close(self, status: str) -> None:
        self._run.finish(exit_code=int(status == FAILED))
