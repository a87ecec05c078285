"""Privacy accounting: the (ε, δ) of every client of a run, over all its uploads."""

from collections.abc import Mapping, Sequence
from typing import Any

from bespokefl.core.errors import count
from bespokefl.metrics.differential_privacy import DELTA, check_accountant, epsilon
from bespokefl.workflows.run.settings import RunSettings


def check(settings: RunSettings) -> None:
    """Raise an error before training if ε could not be computed at the end."""
    if settings.noise:
        check_accountant()


def account(settings: RunSettings, names: Sequence[str], uploaded: Mapping[str, int]) -> dict[str, Any] | None:
    """Return each client's number of uploads and ε, for result.json; None without noise."""
    if not settings.noise:
        return None
    delta = DELTA if settings.delta is None else settings.delta
    uploads = {name: uploaded.get(name, 0) for name in names}
    known = {number: epsilon(settings.noise, number, delta) for number in sorted({*uploads.values()})}
    return {
        "clip": settings.clip,
        "noise": settings.noise,
        "delta": delta,
        "largest_epsilon": max(known.values(), default=0.0),
        "uploads": uploads,
        "epsilon": {name: known[number] for name, number in uploads.items()},
    }


def sentences(found: Mapping[str, Any] | None) -> list[str]:
    """Return the account as sentences for the notes of a result."""
    if found is None:
        return []
    most = max(found["uploads"].values(), default=0)
    return [
        f"Uploads are (ε, δ)-differentially private for each client with ε ≤ {found['largest_epsilon']:.3g} at δ = "
        f"{found['delta']:g}, over {count(most, 'upload')} at most; scores and numbers of examples are not covered."
    ]
