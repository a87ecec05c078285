"""Initial weights of experiments whose methods all continue from a common, pre-trained global model."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from bespokefl import methods
from bespokefl.data.clients import Clients
from bespokefl.workflows.run.api import run

Weights = dict[str, Tensor]


def warm_start(
    settings: Mapping[str, Any], clients: Clients, seed: int, scratch: Path, cluster: str = "none"
) -> Weights | None:
    """Train the global model of `settings["warm"]`; None if the training was interrupted and can be resumed.

    `warm` has the method with its settings and the rounds; everything else is as in the run itself. The weights are
    stored next to `scratch`, because all methods of an experiment have the same.
    """
    warm = settings["warm"]
    options = {"model": settings["run"]["model"], **warm["run"]}
    for key in ("scale", "vocabulary", "length"):  # the examples must be those of the run
        if key in settings["run"]:
            options[key] = settings["run"][key]
    identity = json.dumps([clients.hash, seed, warm, options], sort_keys=True)
    file = scratch.parent / f"warm-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.safetensors"
    if file.exists():
        return load_file(file)
    directory = scratch.with_name(f"{scratch.name}-warm")
    method = methods.build(warm["method"], dict(warm["set"]))
    result = run(method, clients, seed=seed, eval_every=0, workers=1, cluster=cluster, checkpoint=directory, **options)
    if result.interrupted:
        return None
    model = result.global_model()
    assert model is not None
    weights = model.state_dict()
    file.parent.mkdir(parents=True, exist_ok=True)  # a finished run removes its directories
    part = file.with_name(f"{file.name}.{os.getpid()}")
    save_file(weights, part)
    part.replace(file)  # another process may have trained the same
    shutil.rmtree(directory, ignore_errors=True)
    return weights
