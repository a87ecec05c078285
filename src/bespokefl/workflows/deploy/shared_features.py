"""What the nodes of a run agree on: the features of their examples, means and standard deviations, and the classes."""

import logging
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from bespokefl.core.errors import InputError, in_brief, listing, spell
from bespokefl.data.preprocessing.feature_sums import FeatureSums
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables.features import Features, merge_features
from bespokefl.engines.transports.flower.messenger import NodeInfo
from bespokefl.workflows.run.settings import RunSettings

log = logging.getLogger("bespokefl")

MAX_NODES = 5  # that a message lists


def agree_on_features(nodes: Mapping[str, NodeInfo], config: RunSettings) -> tuple[Preparation, list[str] | None]:
    """The preprocessing and the labels for all nodes of a run.

    All nodes must have the same columns. The values of a categorical column, the classes, and the sums from which means
    and standard deviations follow are those of all nodes together.
    """
    abouts = {name: nodes[name].about for name in sorted(nodes)}
    first = next(iter(abouts))
    for name, about in abouts.items():
        if (about["labels"] is None) != (abouts[first]["labels"] is None):
            raise InputError(f"one of the nodes {name} and {first} has classes and the other has real-valued targets.")
        if about["version"] != version("bespokefl"):
            log.warning("node %s has version %s, the server %s", name, about["version"], version("bespokefl"))
    return _preparation(abouts, config), _labels(abouts)


def incompatible(nodes: Mapping[str, NodeInfo]) -> dict[str, str]:
    """The nodes whose data do not fit those of most nodes, or that name clients of another node, with the reason."""
    kinds: dict[str, Any] = {}
    for name in sorted(nodes):
        features, labels = Features.from_dict(nodes[name].about["features"]), nodes[name].about["labels"]
        columns = frozenset((one.name, one.kind) for one in features.columns)
        kinds[name] = (features.kind, columns, features.shape if features.kind != "table" else (), labels is None)
    counts = Counter(kinds.values())
    usual = max(counts, key=lambda kind: counts[kind], default=None)
    found = {name: "its columns or labels are not those of most nodes" for name in kinds if kinds[name] != usual}
    owners: dict[str, str] = {}
    for name in sorted(nodes.keys() - found.keys()):
        clients = nodes[name].about["clients"]
        taken = next((client for client in clients if client in owners), None)
        if taken is not None:
            found[name] = f"its client {in_brief(taken, 60)!r} is that of node {owners[taken]}"
        else:
            owners |= dict.fromkeys(clients, name)
    return found


def _labels(abouts: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    by_node = {name: about["labels"] for name, about in abouts.items()}
    if None in by_node.values():
        return None
    names = {str(label) for labels in by_node.values() for label in labels}
    union = sorted(names, key=lambda label: (not label.isdigit(), int(label) if label.isdigit() else 0, label))
    if any(len(set(labels)) < len(union) for labels in by_node.values()):
        shown = "; ".join(f"{name}: {listing(labels)}" for name, labels in list(by_node.items())[:MAX_NODES])
        more = f" and {len(by_node) - MAX_NODES} more" if len(by_node) > MAX_NODES else ""
        log.warning("the nodes' classes differ (%s%s): the model has all %d of them", shown, more, len(union))
    return union


def _preparation(abouts: Mapping[str, Mapping[str, Any]], config: RunSettings) -> Preparation:
    by_node = {name: Features.from_dict(about["features"]) for name, about in abouts.items()}
    if any(one.kind == "text" for one in by_node.values()):
        raise InputError("texts cannot be deployed, as each node would number words in its own way; use tokens.")
    features = merge_features(by_node)
    # a node's own setting takes precedence over the run's
    missing = "mean" if any(about.get("missing") == "mean" for about in abouts.values()) else config.missing
    if features.kind == "tokens":
        tokens = max(int(about["tokens"]) for about in abouts.values())
        return Preparation(features, missing=missing, tokens=tokens)
    if features.kind != "table":
        if config.scale in ("pooled", "own"):
            raise InputError(f"{spell('scale', config.scale)} is for tables; the nodes' data are arrays.")
        return Preparation(features, "none", missing)
    no_clients = FeatureSums.zeros(0, features.channels)
    pooled = FeatureSums.zeros(features.channels)
    for name, about in abouts.items():
        pooled = pooled + FeatureSums.from_dict(about["sums"]).widen(by_node[name], features)
    scale = config.scale or "pooled"
    return Preparation(features, scale, missing, pooled, (), no_clients if scale == "own" else None)
