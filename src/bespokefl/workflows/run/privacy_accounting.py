"""What the noise on uploads is worth: (ε, δ) of every client of a run, over all uploads that have left it."""

from collections.abc import Mapping, Sequence
from typing import Any

from bespokefl.core.errors import count
from bespokefl.metrics.differential_privacy import DELTA, check_accountant, epsilon
from bespokefl.workflows.run.settings import Config


def check(config: Config) -> None:
    """Before anybody trains: can it be told at the end?"""
    if config.noise:
        check_accountant()


def account(config: Config, names: Sequence[str], uploaded: Mapping[str, int]) -> dict[str, Any] | None:
    """Each client's uploads and ε, for result.json; None where there was no noise."""
    if not config.noise:
        return None
    delta = DELTA if config.delta is None else config.delta
    uploads = {name: uploaded.get(name, 0) for name in names}
    known = {number: epsilon(config.noise, number, delta) for number in sorted({*uploads.values()})}
    return {
        "clip": config.clip,
        "noise": config.noise,
        "delta": delta,
        "largest_epsilon": max(known.values(), default=0.0),
        "uploads": uploads,
        "epsilon": {name: known[number] for name, number in uploads.items()},
    }


def sentences(found: Mapping[str, Any] | None) -> list[str]:
    """The same for people."""
    if found is None:
        return []
    most = max(found["uploads"].values(), default=0)
    return [
        f"Uploads are (ε, δ)-differentially private for each client with ε ≤ {found['largest_epsilon']:.3g} at δ = "
        f"{found['delta']:g}, over {count(most, 'upload')} at most; scores and numbers of examples are not covered."
    ]
