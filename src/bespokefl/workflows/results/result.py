"""The result of a run, in memory and in its directory.

config.toml             the settings, enough to repeat the run
result.json             figures over all clients
clients.csv             one line per client: sizes, and scores of its personal, the global and a constant model
rounds.jsonl            one line per round
client_rounds.jsonl     one line per round and client, if the method records such figures
client_scores.jsonl     one line per evaluated round: test accuracy and loss of every client, if they are at most 1000
split.json              which examples each client has
personal.safetensors    the personal models of all clients
global.safetensors      the global model, if the method has one
start.safetensors       the initial weights, if they were given
server.safetensors      the server's state, from which newcomers' models are made
rounds.safetensors      the global model of every round, with keep_rounds
preparation.json        how examples are preprocessed, if they are
blueprint.json          how to build the model, if the personal models stay at the nodes of a deployment
newcomers.csv           one line per client that was held out of training
newcomers.safetensors   the models of these clients
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from bespokefl.core.errors import InputError, count
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.models import Model
from bespokefl.workflows.newcomers import result as newcomers
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.frames import client_round_lines, frame, round_lines
from bespokefl.workflows.results.models import InMemoryModels, SavedModels, no_client
from bespokefl.workflows.results.score_tables import CONSTANT, Scores, Sizes, dumps
from bespokefl.workflows.results.server_artifact import ServerArtifact
from bespokefl.workflows.run.settings import RunSettings, read

if TYPE_CHECKING:
    from pandas import DataFrame

MODEL_KINDS = ("personal", "global")
CLIENT_SCORES = "client_scores.jsonl"


@dataclass(kw_only=True, eq=False, repr=False)
class Result:
    """The result of one run, as `run`, `resume` and `load_run` return it.

    Attributes
    ----------
    config : RunSettings
        The settings of the run.
    about : dict
        The content of result.json, without scores.
    names : tuple of str
        The names of the clients; arrays and lists are in this order.
    sizes : dict of str to ndarray
        The number of examples per client, by "train", "validation" and "test".
    personal, global_ : dict of str to ndarray
        The scores of the personal models and of the global model per client: "accuracy", "loss", "f1", … on test data,
        "validation_accuracy", "train_loss", … on other data. `global_` is None if the method has no global model.
    constant : dict of str to ndarray or None
        The same scores of a model that knows each client's training labels only: it predicts their majority class, or
        their mean for regression. None in runs of versions that did not compute it.
    rounds : list of dict
        One entry per round, as in rounds.jsonl.
    client_rounds : list of dict
        One entry per round and client, if the method records such figures.
    client_scores : list of dict
        One entry per evaluated round, from round 0: "round", and lists with the test "accuracy" and "loss" of every
        client. Empty if there are more than 1000 clients.
    newcomers : Newcomers or None
        The scores and models of clients that were held out of training.
    preparation : Preparation or None
        How examples are preprocessed; None if they are not.
    path : Path or None
        The directory to which the result was saved.

    Examples
    --------
    >>> result = bf.run("ditto", clients, rounds=50)  # doctest: +SKIP
    >>> result.personal["accuracy"].mean()  # doctest: +SKIP
    >>> result.model("03")(x)  # doctest: +SKIP
    >>> result.save("runs/ditto")  # doctest: +SKIP
    """

    config: RunSettings
    about: dict[str, Any]
    names: tuple[str, ...]
    sizes: Sizes
    personal: Scores
    global_: Scores | None
    rounds: list[dict[str, Any]]
    client_rounds: list[dict[str, Any]]
    weights: InMemoryModels | SavedModels
    final: ServerArtifact | None = None  # None if it is on disk, or was not kept
    newcomers: Newcomers | None = None
    constant: Scores | None = None
    preparation: Preparation | None = None
    client_scores: list[dict[str, Any]] = field(default_factory=list)
    path: Path | None = None
    checkpoints: Path | None = None  # the directory with the checkpoints of this run
    comments: Mapping[str, str] = field(default_factory=dict)  # for keys of config.toml
    write_rest: Callable[[Path], None] | None = None  # writes the split and the given initial weights

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.about["method"])

    @property
    def hyper(self) -> dict[str, Any]:
        """The hyper-parameters of the method."""
        return dict(self.about["hyper"])

    @property
    def communication(self) -> dict[str, Any]:
        """Bytes and messages, up and down."""
        return dict(self.about["communication"])

    @property
    def work(self) -> dict[str, Any] | None:
        """Gradient steps per client and round, and gradients computed; None if an earlier version wrote the run."""
        return self.about.get("work")

    @property
    def timing(self) -> dict[str, Any]:
        """Seconds, and how the run was computed."""
        return dict(self.about["timing"])

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted before its last round."""
        return bool(self.about["interrupted"])

    @property
    def notes(self) -> list[str]:
        """Sentences that help to read the figures."""
        return list(self.about["notes"])

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per client, as in clients.csv."""
        return score_tables.lines(self.names, self.sizes, self._kinds)

    @property
    def _kinds(self) -> dict[str, Scores | None]:
        return {"personal": self.personal, "global": self.global_, CONSTANT: self.constant}

    def clients_frame(self) -> "DataFrame":
        """Return `clients` as a pandas data frame: one row per client."""
        return frame(self.clients)

    def rounds_frame(self) -> "DataFrame":
        """Return the rounds as a pandas data frame: mean scores, cumulative bytes and seconds, from round 0."""
        return frame(round_lines(self))

    def client_rounds_frame(self) -> "DataFrame":
        """Return `client_scores` as a pandas data frame: one row per evaluated round and client."""
        return frame(client_round_lines(self))

    def summary(self) -> dict[str, Any]:
        """Return the content of result.json: `about`, and figures over clients.

        Under "personal", "global", "constant" and "newcomers" it has each score's mean, standard deviation, worst
        decile, ….
        """
        return {
            **self.about,
            "personal": score_tables.figures(self.personal, self.sizes),
            "global": None if self.global_ is None else score_tables.figures(self.global_, self.sizes),
            CONSTANT: None if self.constant is None else score_tables.figures(self.constant, self.sizes),
            "newcomers": None if self.newcomers is None else self.newcomers.summary(),
        }

    def __repr__(self) -> str:
        about, figures = self.about, self.summary()
        title = (
            f"{self.method} on {about['data']}, {about['split']}, {count(len(self.names), 'client')}, "
            f"model {about['model']}, {count(about['rounds_done'], 'round')}"
            f"{' (interrupted)' if self.interrupted else ''}, seed {about['seed']}"
        )
        kinds = {kind: figures[kind] for kind in MODEL_KINDS}
        if self.constant is not None:
            kinds[score_tables.constant_title(self.constant)] = figures[CONSTANT]
        return "\n".join([title, *score_tables.in_words(kinds)])

    def model(self, client: str) -> nn.Module:
        """Return the personal model of a client, also of one held out of training; in evaluation mode, on the CPU.

        Raises
        ------
        InputError
            If there is no such client, or if its model is at a node of a deployment.
        """
        name, held_out = str(client), self.newcomers
        if held_out is not None and name in held_out.names:
            return held_out.model(name)
        if name not in self.names:
            raise no_client(name, self.names + (() if held_out is None else held_out.names))
        if (node := self.node_of(name)) is not None:
            raise InputError(
                f"the personal model of client {name} is not in the run but at its node, {node}; on that machine: "
                f"bespoke deploy predict {shlex.quote(node)} --client {shlex.quote(name)} --data FILE."
            )
        return self.weights.module(self.names.index(name))

    def node_of(self, client: str) -> str | None:
        """Return the node of a deployment that keeps the personal model of a client; None if the model is here."""
        return next((node for node, own in self.about.get("nodes", {}).items() if str(client) in own), None)

    def global_model(self) -> nn.Module | None:
        """Return the global model, in evaluation mode, on the CPU; None if the method has none."""
        return self.weights.global_module()

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write the directory of this run, completely or not at all, and return its path.

        Parameters
        ----------
        path : path
            The directory; its parents are made if they do not exist.
        overwrite : bool, default=False
            Whether to replace another run in this directory.

        Raises
        ------
        InputError, DiskError
            If the directory cannot be written, or holds something else; if the disk is full.
        """
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
        (into / "config.toml").write_text(self.config.to_toml(self.comments), encoding="utf-8")
        (into / "result.json").write_text(dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        score_tables.write_clients(into / "clients.csv", self.names, self.sizes, self._kinds)
        score_tables.write_lines(into / "rounds.jsonl", self.rounds)
        if self.client_rounds:
            score_tables.write_lines(into / "client_rounds.jsonl", self.client_rounds)
        if self.client_scores:
            score_tables.write_lines(into / CLIENT_SCORES, self.client_scores)
        self.weights.write(into, self.names)
        if self.preparation is not None:
            (into / newcomers.PREPARATION).write_text(self.preparation.to_json(), encoding="utf-8")
        if self.final is not None:
            self.final.write(into)
        if self.newcomers is not None:
            self.newcomers.write(into)
        if self.interrupted and self.checkpoints is not None and self.checkpoints.is_dir():
            shutil.copytree(self.checkpoints, into / run_directory.CHECKPOINTS, copy_function=_link)
        if self.write_rest is not None:
            self.write_rest(into)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # no hard links, or another file system
        shutil.copyfile(source, target)


def load_run(path: str | PathLike[str], model: Model | None = None) -> Result:
    """Load the result in the directory of a run. Models are read when they are needed.

    Parameters
    ----------
    path : path
        The directory.
    model : callable or torch.nn.Module, optional
        The model, if it was a Python object, which the directory does not hold.

    Raises
    ------
    InputError
        If the directory does not hold a run, or is damaged.
    """
    source = Path(path)
    if not run_directory.is_run(source):
        if runs := sorted(one.parent for one in (source / "runs").glob("*/result.json")):
            raise InputError(f"{str(path)!r} holds several runs; name one of them, such as {str(runs[0])!r}.")
        raise InputError(f"{str(path)!r} is not the directory of a run: it has no {' and '.join(run_directory.SIGNS)}.")
    try:
        about = json.loads((source / "result.json").read_text(encoding="utf-8"))
        names, sizes, scores = score_tables.read_clients(source / "clients.csv", (*MODEL_KINDS, CONSTANT))
        notes, curves, held_out = source / "client_rounds.jsonl", source / CLIENT_SCORES, about["newcomers"]
        return Result(
            config=RunSettings.of(read(source / "config.toml")),
            about=about,
            names=names,
            sizes=sizes,
            personal=scores["personal"],
            global_=None if about["global"] is None else scores["global"],
            constant=scores[CONSTANT] or None,
            rounds=score_tables.read_lines(source / "rounds.jsonl"),
            client_rounds=score_tables.read_lines(notes) if notes.exists() else [],
            client_scores=score_tables.read_lines(curves) if curves.exists() else [],
            weights=SavedModels(source.resolve(), model),
            newcomers=None if held_out is None else newcomers.read_newcomers(source, held_out, about, model),
            preparation=newcomers.read_preparation(source),
            path=source,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"the run in {str(path)!r} is damaged: {error!r}.") from error
