"""What a run found, for each client, in memory and on disk.

config.toml             what was run; enough to repeat it
result.json             the figures over all clients
clients.csv             one line per client: sizes, personal and global accuracy, loss, F1, precision and recall
rounds.jsonl            one line per round
client_rounds.jsonl     one line per round and client, where a method keeps such figures
split.json              whose examples are whose
personal.safetensors    everybody's model
global.safetensors      the common model, where a method has one
start.safetensors       the weights it began with, where they were given
server.safetensors      what the server kept, for clients that come later
rounds.safetensors      the common model of every round, where it was asked for
blueprint.json          what it takes to build the model, where everybody's own is at a node
newcomers.csv           one line per client that was held back, and
newcomers.safetensors   their models, where some were
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from bespokefl.core.errors import InputError, count
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.workflows.newcomers import result as newcomers
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import InMemoryModels, Model, SavedModels, no_client
from bespokefl.workflows.results.score_tables import Scores, Sizes, dumps
from bespokefl.workflows.results.server_artifact import ServerArtifact
from bespokefl.workflows.run import settings as configs
from bespokefl.workflows.run.settings import Config

KINDS = ("personal", "global")
PREPARATION = newcomers.PREPARATION


class Result:
    """One finished run. Arrays and lists are in the order of `names`."""

    def __init__(
        self,
        *,
        config: Config,
        about: Mapping[str, Any],
        names: tuple[str, ...],
        sizes: Sizes,
        personal: Scores,
        global_: Scores | None,
        rounds: list[dict[str, Any]],
        client_rounds: list[dict[str, Any]],
        weights: InMemoryModels | SavedModels,
        final: ServerArtifact | None = None,
        newcomers: Newcomers | None = None,
        write_rest: Callable[[Path], None] | None = None,
        comments: Mapping[str, str] | None = None,
        preparation: Preparation | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        self.config = config
        self.about = dict(about)  # what result.json holds, but for the scores
        self.names = names
        self.sizes = dict(sizes)  # "train", "validation", "test": examples per client
        self.personal = personal
        self.global_ = global_
        self.rounds = rounds
        self.client_rounds = client_rounds
        self.weights = weights
        self.final = final  # what newcomers' models are made of; None where it is on disk, or was not kept
        self.newcomers = newcomers  # clients that were held back from training
        self.path: Path | None = None  # where it was saved
        self.preparation = preparation  # how examples are made to fit the models; None: they are taken as they are
        self.checkpoints = checkpoints  # the folder of those that were written on the way
        self._write_rest = write_rest
        self._comments = dict(comments or {})

    # -- looking at it

    @property
    def method(self) -> str:
        return str(self.about["method"])

    @property
    def hyper(self) -> dict[str, Any]:
        return dict(self.about["hyper"])

    @property
    def communication(self) -> dict[str, Any]:
        return dict(self.about["communication"])

    @property
    def timing(self) -> dict[str, Any]:
        return dict(self.about["timing"])

    @property
    def interrupted(self) -> bool:
        return bool(self.about["interrupted"])

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know, one sentence each."""
        return list(self.about["notes"])

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per client, as in clients.csv; `pandas.DataFrame(result.clients)` makes a table of it."""
        return score_tables.lines(self.names, self.sizes, {"personal": self.personal, "global": self.global_})

    def summary(self) -> dict[str, Any]:
        """What result.json holds."""
        return {
            **self.about,
            "personal": score_tables.figures(self.personal, self.sizes),
            "global": None if self.global_ is None else score_tables.figures(self.global_, self.sizes),
            "newcomers": None if self.newcomers is None else self.newcomers.summary(),
        }

    def __repr__(self) -> str:
        about = self.about
        lines = [
            f"{self.method} on {about['data']}, {about['split']}, {count(len(self.names), 'client')}, "
            f"model {about['model']}, {count(about['rounds_done'], 'round')}"
            f"{' (interrupted)' if self.interrupted else ''}, seed {about['seed']}"
        ]
        figures = self.summary()
        for kind in KINDS:
            scores = figures[kind]
            if scores is None:
                lines.append(f"  {kind:<8}  none: the method has no {kind} model")
                continue
            name = "loss" if scores["accuracy"] is None else "accuracy"
            worded = [
                f"{what.replace('_', ' ')} {_short(scores[name][what])}" for what in ("mean", "std", "worst_decile")
            ]
            lines.append(f"  {kind:<8}  test {name}: {', '.join(worded)}")
        return "\n".join(lines)

    # -- its models

    def model(self, client: str) -> nn.Module:
        """A client's own model, ready to predict; a newcomer's, too."""
        late = self.newcomers
        if late is not None and str(client) in late.names:
            return late.model(client)
        if str(client) not in self.names:
            raise no_client(str(client), self.names + (late.names if late is not None else ()))
        home = next((node for node, own in self.about.get("nodes", {}).items() if str(client) in own), None)
        if home is not None:
            raise InputError(
                f"the own model of client {client} is not in the run but at its node, {home}; on that machine: bespoke "
                f"deploy predict {shlex.quote(home)} --client {shlex.quote(str(client))} --data FILE."
            )
        return self.weights.module(self.names.index(str(client)))

    def global_model(self) -> nn.Module | None:
        """The common model, ready to predict; None where the method has none."""
        return self.weights.common_module()

    # -- on disk

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write the folder of this run; it appears complete or not at all."""
        target = Path(path)
        own = self.checkpoints is not None and target.resolve() == self.checkpoints.resolve().parent
        self.path = run_directory.write(target, self._fill, overwrite or own)
        return self.path

    def _fill(self, into: Path) -> None:
        if isinstance(self.weights, SavedModels):
            for file in self.weights.folder.iterdir():
                if file.is_file():
                    shutil.copyfile(file, into / file.name)
            return
        (into / "config.toml").write_text(self.config.to_toml(self._comments), encoding="utf-8")
        (into / "result.json").write_text(dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        score_tables.write_csv(into / "clients.csv", self.clients)
        score_tables.write_lines(into / "rounds.jsonl", self.rounds)
        if self.client_rounds:
            score_tables.write_lines(into / "client_rounds.jsonl", self.client_rounds)
        self.weights.write(into, self.names)
        if self.preparation is not None:
            (into / PREPARATION).write_text(self.preparation.to_json(), encoding="utf-8")
        if self.final is not None:
            self.final.write(into)
        if self.newcomers is not None:
            self.newcomers.write(into)
        if self.interrupted and self.checkpoints is not None and self.checkpoints.is_dir():
            shutil.copytree(self.checkpoints, into / run_directory.CHECKPOINTS, copy_function=_link)
        if self._write_rest is not None:
            self._write_rest(into)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or another one
        shutil.copyfile(source, target)


def load_run(path: str | PathLike[str], model: Model | None = None) -> Result:
    """The result in the folder of a run. `model` is needed for its models where they were made by a Python object."""
    source = Path(path)
    if not run_directory.is_run(source):
        raise InputError(f"{str(path)!r} is not the folder of a run: it has no {' and '.join(run_directory.SIGNS)}.")
    try:
        about = json.loads((source / "result.json").read_text(encoding="utf-8"))
        names, sizes, scores = score_tables.read_clients(source / "clients.csv", KINDS)
        rounds = score_tables.read_lines(source / "rounds.jsonl")
        notes = source / "client_rounds.jsonl"
        client_rounds = score_tables.read_lines(notes) if notes.exists() else []
        late = about["newcomers"]
        result = Result(
            config=Config.of(configs.read(source / "config.toml")),
            about=about,
            names=names,
            sizes=sizes,
            personal=scores["personal"],
            global_=None if about["global"] is None else scores["global"],
            rounds=rounds,
            client_rounds=client_rounds,
            weights=SavedModels(source.resolve(), model),
            newcomers=None if late is None else newcomers.read_newcomers(source, late, about, model),
            preparation=newcomers.read_preparation(source),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"the run in {str(path)!r} is damaged: {error!r}.") from error
    result.path = source
    return result


def _short(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
