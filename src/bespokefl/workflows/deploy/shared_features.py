"""What the nodes of a run have in common: the features of their examples, the means and spreads, the classes."""

import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from bespokefl.core.errors import InputError, listing
from bespokefl.data.preprocessing.feature_sums import FeatureSums
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables.features import Features, merge_features
from bespokefl.engines.transports.flower.messenger import NodeInfo
from bespokefl.workflows.run.settings import Config

log = logging.getLogger("bespokefl")

SHOWN = 5  # nodes in a sentence


def agreed(known: Mapping[str, NodeInfo], config: Config) -> tuple[Preparation, list[str] | None]:
    """How examples are made to fit, and the labels. The columns must be the same at all nodes; the texts of a category,
    the classes, and the sums that a table's means and spreads are worked out from are those of all nodes together."""
    abouts = {name: known[name].about for name in sorted(known)}
    first = next(iter(abouts))
    for name, about in abouts.items():
        if (about["labels"] is None) != (abouts[first]["labels"] is None):
            raise InputError(f"one of the nodes {name} and {first} has classes and the other has real-valued targets.")
        if about["version"] != version("bespokefl"):
            log.warning("node %s has version %s, the server %s", name, about["version"], version("bespokefl"))
    return _preparation(abouts, config), _labels(abouts)


def _labels(abouts: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    own = {name: about["labels"] for name, about in abouts.items()}
    if None in own.values():
        return None
    names = {str(label) for labels in own.values() for label in labels}
    found = sorted(names, key=lambda label: (not label.isdigit(), int(label) if label.isdigit() else 0, label))
    if any(len(set(labels)) < len(found) for labels in own.values()):
        who = "; ".join(f"{name}: {listing(labels)}" for name, labels in list(own.items())[:SHOWN])
        more = f" and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
        log.warning("the nodes' classes differ (%s%s): the model has all %d of them", who, more, len(found))
    return found


def _preparation(abouts: Mapping[str, Mapping[str, Any]], config: Config) -> Preparation:
    own = {name: Features.from_dict(about["features"]) for name, about in abouts.items()}
    if any(one.kind == "text" for one in own.values()):
        raise InputError("texts cannot be deployed: every node would number words in its own way; use tokens.")
    features = merge_features(own)
    if features.kind == "tokens":
        tokens = max(int(about["tokens"]) for about in abouts.values())
        return Preparation(features, missing=config.missing, tokens=tokens)
    if features.kind != "table":
        if config.scale in ("pooled", "own"):
            raise InputError(f"scale = {config.scale!r} is for tables; the nodes' data are arrays.")
        return Preparation(features, "none", config.missing)
    nobody = FeatureSums.zeros(0, features.channels)
    pooled = FeatureSums.zeros(features.channels)
    for name, about in abouts.items():
        pooled = pooled + FeatureSums.from_dict(about["sums"]).widen(own[name], features)
    scale = config.scale or "pooled"
    return Preparation(features, scale, config.missing, pooled, (), nobody if scale == "own" else None)
