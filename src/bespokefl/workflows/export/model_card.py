"""The model card: what a model is, what it was trained on, how good it is, and what it is not for."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import nn

from bespokefl.core.errors import count
from bespokefl.metrics.metric import metric_of, split_name
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results.models import Recipe
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.score_tables import (
    CONSTANT,
    SIZES,
    Scores,
    column_title,
    constant_title,
    figures,
    format_score,
)

JSON, MARKDOWN, TEMPLATE = "model_card.json", "MODEL_CARD.md", "MODEL_CARD.md.jinja"
FORMAT = 1  # of model_card.json and preprocessing.json


def make_card(
    run: Result | Newcomers,
    client: str | None,
    model: nn.Module,
    recipe: Recipe,
    *,
    input: Mapping[str, Any],
    output: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the content of model_card.json; `client` is None for the global model."""
    about: Mapping[str, Any] = run.about if isinstance(run, Result) else run.origin
    owner = _owner(run, client)
    scores = _scores(owner, client)
    sizes = {part: int(owner.sizes[part].sum() if client is None else _of(owner, client, part)) for part in SIZES}
    return {
        "format": FORMAT,
        "client": client,
        "model": {
            "name": recipe.blueprint.model,
            "kind": "global" if client is None else "personal",
            "parameters": sum(one.numel() for one in model.parameters()),
            "precision": recipe.blueprint.precision,
        },
        "input": dict(input),
        "output": dict(output),
        "data": {
            "name": about["data"],
            "split": about["split"],
            "split_hash": about["split_hash"],
            "clients": len(run.names),
            "examples": sizes,
        },
        "method": {
            "name": about["method"],
            "hyper_parameters": about["hyper"],
            "rounds": about["rounds_done"],
            "seed": about["seed"],
            "settings": about.get("settings"),
            "took_part": owner is run and isinstance(run, Result),
        },
        "test_scores": scores,
        "files": {name: dict(one) for name, one in files.items()},
        "intended_use": _intended_use(client, output),
        "limits": _limits(about, owner, client, sizes, scores, files),
        "versions": {"bespokefl": version("bespokefl"), "training": about.get("versions")},
    }


def to_markdown(card: Mapping[str, Any]) -> str:
    """Return a model card as Markdown."""
    scores: Mapping[str, Mapping[str, float]] = card["test_scores"]
    measures = list(dict.fromkeys(name for own in scores.values() for name in own))
    titles = {kind: constant_title(own) if kind == CONSTANT else kind for kind, own in scores.items()}
    rows = [[column_title(name), *(format_score(own.get(name), name) for own in scores.values())] for name in measures]
    return _environment().get_template(TEMPLATE).render(card=card, kinds=list(titles.values()), rows=rows)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bespokefl.workflows.export", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = lambda value: str(value).replace("|", "\\|").replace("\n", " ")
    return environment


def _owner(run: Result | Newcomers, client: str | None) -> Result | Newcomers:
    """The run, or those of its newcomers that have this client."""
    held_out = run.newcomers if isinstance(run, Result) else None
    return held_out if held_out is not None and client in held_out.names else run


def _of(owner: Result | Newcomers, client: str, part: str) -> int:
    return int(owner.sizes[part][owner.names.index(client)])


def _scores(owner: Result | Newcomers, client: str | None) -> dict[str, dict[str, float | None]]:
    """Return test scores by kind of model: of one client, or for the global model their means over clients."""
    kinds: dict[str, Scores | None] = {"personal": owner.personal}
    if isinstance(owner, Result):
        kinds |= {"global": owner.global_, CONSTANT: owner.constant}
    else:
        kinds["finetune"] = owner.finetune
    found = {kind: _on_test_data(owner, scores, client) for kind, scores in kinds.items() if scores}
    return found if client is not None else {kind: own for kind, own in found.items() if kind != "personal"}


def _on_test_data(owner: Result | Newcomers, scores: Scores, client: str | None) -> dict[str, float | None]:
    own = {name: values for name, values in scores.items() if not split_name(name)[0]}
    if client is None:
        return {name: one["mean"] for name, one in figures(own, owner.sizes).items() if one is not None}
    at = owner.names.index(client)
    return {name: float(values[at]) for name, values in own.items()}


def _intended_use(client: str | None, output: Mapping[str, Any]) -> str:
    what = "one value per example" if output["classes"] is None else f"one of {len(output['classes'])} classes"
    whose = "of all clients of the federation" if client is None else f"of client {client}"
    return f"Predicts {what}, for examples {whose} that are like those it was trained on."


def _limits(
    about: Mapping[str, Any],
    owner: Result | Newcomers,
    client: str | None,
    sizes: Mapping[str, int],
    scores: Mapping[str, Mapping[str, float | None]],
    files: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    limits = []
    if client is None:
        limits.append("It is a compromise between all clients; scores are means over clients.")
    else:
        limits.append("It was made for one client: on the data of others it was not tested.")
    limits.append(f"The scores are of {count(sizes['test'], 'test example')}, after the last round.")
    own, constant = scores.get("global" if client is None else "personal", {}), scores.get(CONSTANT, {})
    name = "accuracy" if "accuracy" in own else "loss"
    mine, baseline = own.get(name), constant.get(name)
    if mine is not None and baseline is not None:
        better = mine > baseline if metric_of(name).higher_is_better else mine < baseline
        if not better:
            limits.append(f"Its test {name} is not better than that of a constant prediction.")
    privacy = about.get("privacy")
    if privacy is None:
        limits.append("Training was not differentially private: the weights may reveal training examples.")
    elif "largest_epsilon" not in privacy:
        limits.append(
            f"Uploads were clipped and noised (clip {privacy['clip']:g}, noise {privacy['noise']:g}); the server's "
            "result.json has the (ε, δ) of each client. The model itself was not noised."
        )
    else:
        epsilon = f"ε ≤ {privacy['largest_epsilon']:.3g} at δ = {privacy['delta']:g}"
        limits.append(f"Uploads were (ε, δ)-differentially private with {epsilon}; the model itself was not noised.")
    if any(one["check"]["examples"] == "random inputs" for one in files.values()):
        limits.append("Files were checked with random inputs, as the data of the run could not be loaded.")
    return limits + list(owner.notes)
