"""The registered methods, by name. A new method is one file and one line here."""

from typing import Any

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import Method
from bespokefl.methods.ditto import Ditto
from bespokefl.methods.fedavg import FedAvg
from bespokefl.methods.fedprox import FedProx
from bespokefl.methods.local import Local
from bespokefl.methods.persfl import PersFL, PersFLGD

REGISTRY: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Local,
        FedAvg,
        FedProx,
        Ditto,
        PersFL,
        PersFLGD,
    )
}

__all__ = ["REGISTRY", "Ditto", "FedAvg", "FedProx", "Local", "PersFL", "PersFLGD", "build", "find"]


def find(name: str) -> type[Method]:
    if name not in REGISTRY:
        raise unknown("method", name, REGISTRY, see="bespoke methods")
    return REGISTRY[name]


def build(name: str, hyper: dict[str, Any] | None = None) -> Method:
    """A method with these hyper-parameters; the rest are its defaults."""
    method = find(name)
    defaults = method().hyper()
    given: dict[str, Any] = {}
    for key, value in (hyper or {}).items():
        if key not in defaults:
            raise unknown(f"hyper-parameter of {name}", key, defaults, see=f"bespoke methods {name}")
        given[key] = _fitting(name, key, value, defaults[key])
    return method(**given)


def _fitting(name: str, key: str, value: Any, default: Any) -> Any:
    """The value in the type of the default: 1 for 1.0 is fine, "abc" for a number is not."""
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(default, bool) == isinstance(value, bool)
    elif isinstance(default, float):
        fits = isinstance(value, int | float)
        value = float(value) if fits else value
    elif isinstance(default, int):
        fits = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        value = int(value) if fits else value
    else:
        fits = default is None or isinstance(value, type(default))
    if not fits:
        kind = type(default).__name__
        raise InputError(f"{key} of {name} must be a {kind} such as {default!r}, got {value!r}.")
    return value
