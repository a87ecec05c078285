"""The process of a node: it loads its data, builds what the server's plan asks for, and answers requests."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bespokefl import data as datasets
from bespokefl import methods, models
from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import (
    NODE_FILE,
    BespokeError,
    InputError,
    count,
    said,
    settings_written_in,
)
from bespokefl.core.user_input import plugins
from bespokefl.core.user_input.spec import frozen, imported, is_named
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.preprocessing.feature_sums import FeatureSums
from bespokefl.data.preprocessing.fit import features_of
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables.client_directories import split_table
from bespokefl.data.tables.features import Features
from bespokefl.engines.client import ClientSide
from bespokefl.engines.cohorts.features import prepare
from bespokefl.engines.protection.clipping import Privacy
from bespokefl.engines.transports.flower.node.node import Node, Prepared
from bespokefl.engines.transports.flower.run_plan import RunPlan, fingerprint
from bespokefl.engines.transports.flower.services import supernode
from bespokefl.workflows.deploy.layout import NODE_ID, TABLE_OPTIONS, NodeSettings, host_of, is_loopback
from bespokefl.workflows.results.models import NODE_ENTRY, PRECISIONS
from bespokefl.workflows.run.client_loading import table_options
from bespokefl.workflows.run.convert import check_clients, engine_data, find_device, labels_of
from bespokefl.workflows.run.task_builder import TaskSpec

log = logging.getLogger("bespokefl")


def run_node(directory: Path, settings: NodeSettings, stopped: threading.Event, ready: Callable[[], None]) -> None:
    """Run a node until `stopped` is set; call `ready` when it is connected.

    A node whose data are unusable connects, too: a run then ends with the reason instead of waiting for the node.
    """
    torch.set_num_threads(1)
    host = LocalHost(settings, directory)
    try:
        log.info("node %s has %s", settings.name, count(len(host.check()), "client"))
    except InputError as error:
        if not host.has_file:
            raise
        reason = str(error).rstrip(".")
        log.warning("node %s cannot take part in runs: %s; correct this and restart the node", settings.name, reason)
    secure = (directory / "node.key").is_file()
    if not secure and (directory / "ca.crt").exists():
        raise InputError(
            f"node {settings.name} has the authority's certificate, ca.crt, but no key, node.key, in "
            f"{str(directory)!r}: restore it; without a key it would connect without TLS."
        )
    if not secure and not is_loopback(host_of(settings.server)):
        raise InputError(
            f"node {settings.name} has no key, node.key, in {str(directory)!r}: without one it may only connect to "
            "127.0.0.1."
        )
    state = directory / settings.state
    certificate, key = (directory / "ca.crt", directory / "node.key") if secure else (None, None)
    endpoint = supernode.Endpoint(settings.server, certificate, key, state / NODE_ID)
    supernode.serve_messages(endpoint, Node(host, state, settings.score_policy), stopped, ready)


class LocalHost:
    """The clients of one machine. Paths in the settings are relative to `directory`."""

    def __init__(self, settings: NodeSettings, directory: Path) -> None:
        self.settings, self.directory = settings, directory
        self._clients: dict[str, Clients] = {}  # by the treatment of missing values

    @property
    def name(self) -> str:
        """The node's name, from node.toml."""
        return self.settings.name

    @property
    def clients(self) -> Clients:
        """The clients, whose data must be complete unless node.toml says otherwise."""
        return self.clients_for("refuse")

    @property
    def has_file(self) -> bool:
        """Whether the data are a file or directory that exists; if it is unusable, runs are told why."""
        data = self.settings.data
        return data is not None and not is_named(data) and (self.directory / data).exists()

    def check(self) -> Clients:
        """Load the data once. Whether values may be missing is left to the runs, unless node.toml says it."""
        if self.settings.missing is not None:
            return self.clients_for(self.settings.missing)
        try:
            return self.clients_for("mean")
        except InputError as error:
            try:
                return self.clients_for("drop")
            except InputError:
                raise error from None

    def clients_for(self, missing: str) -> Clients:
        """The clients of a run that treats missing values so; node.toml takes precedence."""
        chosen = self.settings.missing or missing
        complete = self._clients.get("mean")
        if chosen not in self._clients and complete is not None and not complete.x.isnan().any():
            return complete
        if chosen not in self._clients:
            with settings_written_in(NODE_FILE):
                clients = self._load(chosen)
            check_clients(clients)
            if self.settings.prefix:
                clients = replace(clients, names=tuple(f"{self.name}/{client}" for client in clients.names))
            self._clients[chosen] = clients
        return self._clients[chosen]

    def about(self, missing: str = "refuse") -> dict[str, Any]:
        clients, sums = self.clients_for(missing), None
        features = features_of(clients)
        if features.kind == "table":  # for scaling: of each feature the count, sum and sum of squares
            sums = FeatureSums.of(clients.x.numpy()[clients.train.indices.numpy()], features).to_dict()
        sizes = {part: getattr(clients, part).sizes.tolist() for part in ("train", "validation", "test")}
        return {
            "clients": {
                name: {part: counts[at] for part, counts in sizes.items()}
                | ({} if clients.groups is None else {"group": clients.groups[at]})
                for at, name in enumerate(clients.names)
            },
            "features": features.to_dict(),
            "missing": self.settings.missing or missing,
            "tokens": None if clients.x.is_floating_point() else int(clients.x.max()) + 1,
            "sums": sums,
            "labels": None if clients.classes is None else list(labels_of(clients)),
            "version": version("bespokefl"),
        }

    def prepare(self, plan: RunPlan) -> Prepared:
        recipe = dict(plan.recipe)
        model, labels = str(recipe["model"]), recipe["labels"]
        if model != self.settings.model:
            self._check_allowed("model", model, plugins.MODELS)
        self._check_allowed("method", str(recipe["method"]), plugins.METHODS)
        if self.settings.noise and (plan.clip is None or not (plan.noise or 0.0) >= self.settings.noise):
            raise InputError(
                f"node {self.name} insists on noise of at least {self.settings.noise:g} on its uploads, and the run "
                f"has {plan.noise or 0:g}: start it with --clip and --noise {self.settings.noise:g} or more."
            )
        preparation = Preparation.from_json(recipe["preparation"])
        clients = self._widened(self.clients_for(str(recipe.get("missing", "refuse"))), preparation.features)
        clients, preparation = preparation.prepare_clients(self._relabelled(clients, labels))
        classes, precision = None if labels is None else len(labels), str(recipe["precision"])
        device = find_device(self.settings.device, precision)
        spec = TaskSpec(
            model=model,
            shape=clients.shape,
            classes=classes,
            tokens=preparation.tokens,
            loss=str(recipe["loss"]),
            head=recipe["head"],
            local_blocks=str(recipe.get("local_blocks", "")),
            seed=plan.seed,
            precision=precision,
            device=device,
        )
        task = spec.build()
        mark = fingerprint(task, warm=plan.warm)
        data = engine_data(clients, device, PRECISIONS[spec.precision])
        above, features, executor = prepare(task, data, plan.settings, classes)
        method = methods.build(str(recipe["method"]), {key: frozen(value) for key, value in recipe["hyper"].items()})
        privacy = Privacy(plan.clip, plan.noise, secret=True)
        side = ClientSide(method, above, features, plan.settings, privacy)
        examples = {"shape": clients.shape, "tokens": not clients.x.is_floating_point(), "labels": labels}
        kept = {
            "examples": examples,
            "preparation": preparation.to_json() if preparation.changes else None,
            "run": self._describe(plan, method.hyper(), clients),
        }
        return Prepared(side, executor, mark, asdict(spec.recipe(task).blueprint) | {NODE_ENTRY: kept})

    # -- inside

    def _describe(self, plan: RunPlan, hyper: Mapping[str, Any], clients: Clients) -> dict[str, Any]:
        """What model cards say about a run at this node."""
        shared = ("batch_size", "local_epochs", "local_steps", "participation")
        sizes = zip(*(getattr(clients, part).sizes.tolist() for part in PARTS), strict=True)
        return {
            "method": plan.recipe["method"],
            "hyper": hyper,
            "data": self.settings.data,
            "rounds": plan.rounds,
            "seed": plan.seed,
            "settings": {name: getattr(plan, name) for name in shared},
            "clip": plan.clip,
            "noise": plan.noise,
            "sizes": dict(zip(clients.names, sizes, strict=True)),
            "versions": {name: version(name) for name in ("bespokefl", "torch", "numpy")},
        }

    def _check_allowed(self, what: str, name: str, group: str) -> None:
        """Reject code that is not Bespoke's own, unless node.toml names its module."""
        built_in = methods.REGISTRY if what == "method" else models.MODELS
        module = None if name.partition("(")[0] in built_in else plugins.module_of(name.partition("(")[0], group)
        if module is not None and module not in self.settings.modules:
            agreement = f'model = "{name}"' if what == "model" else f'modules = ["{module}"]'
            raise InputError(
                f"the server asks node {self.name} for the {what} {name!r}, which runs code that this node has not "
                f"agreed to; to agree, write {agreement} into its node.toml."
            )

    def _load(self, missing: str) -> Clients:
        settings = self.settings
        if settings.data is None:
            file = str(self.directory / "node.toml")
            raise InputError(f"node {self.name} has no data: name them in {file!r}, or with --data.")
        found = _call(settings.data) if is_named(settings.data) else self._read(settings.data, missing)
        if isinstance(found, Clients):
            return found
        if not isinstance(found, Dataset):
            raise InputError(f"{settings.data} must return a Dataset or Clients, got {type(found).__name__}.")
        single = found.client is None
        number = 1 if single else None
        clients = split_table(found, None, "iid", number=number, seed=settings.seed, fractions=settings.fractions)
        return replace(clients, names=(self.name,)) if single else clients

    def _read(self, source: str, missing: str) -> Dataset:
        path = self.directory / source
        options = {key: getattr(self.settings, key) for key in TABLE_OPTIONS} | {"missing": missing}
        return datasets.load(str(path) if path.exists() else source, **table_options(options))

    def _widened(self, clients: Clients, features: Features) -> Clients:
        """The clients with a column for each value that a category has at any node."""
        own = features_of(clients)
        if features.kind != "table" or features.columns == own.columns:
            return clients
        try:
            return replace(clients, x=torch.from_numpy(own.widen(clients.x.numpy(), features)))
        except KeyError as error:
            raise InputError(f"node {self.name} has no column {error}, which the server's plan requires.") from None

    def _relabelled(self, clients: Clients, labels: list[str] | None) -> Clients:
        """The clients with their classes numbered as in the server's plan."""
        if (labels is None) != (clients.classes is None):
            raise InputError(
                f"node {self.name} does not have the kind of labels in the server's plan: classes or real numbers."
            )
        own = labels_of(clients)
        if labels is None or list(own) == labels:
            return clients
        code = {name: index for index, name in enumerate(labels)}
        codes = torch.tensor([code[name] for name in own])
        return replace(clients, y=codes[clients.y], classes=len(labels), label_names=tuple(labels))


def _call(source: str) -> Any:
    function = imported(source, "data")
    try:
        return function()
    except BespokeError:
        raise
    except Exception as error:
        raise InputError(f"the data function {source!r} failed with {said(error)}.") from error
