"""The registered methods, by name. A new method is one file and one line here."""

from types import UnionType
from typing import Any, get_type_hints

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import Method
from bespokefl.methods.apfl import APFL
from bespokefl.methods.cfl import CFL
from bespokefl.methods.ditto import Ditto
from bespokefl.methods.fedavg import FedAvg
from bespokefl.methods.fedavg_ft import FedAvgFT
from bespokefl.methods.fedfomo import FedFOMO
from bespokefl.methods.fedper import FedPer
from bespokefl.methods.fedprox import FedProx
from bespokefl.methods.fedrep import FedRep
from bespokefl.methods.ifca import IFCA
from bespokefl.methods.local import Local
from bespokefl.methods.oracle import Oracle
from bespokefl.methods.perfedavg import PerFedAvg
from bespokefl.methods.persfl import PersFL, PersFLGD
from bespokefl.methods.pfedbayes import PFedBayes
from bespokefl.methods.pfedme import PFedMe
from bespokefl.methods.pfedvem import PFedVEM
from bespokefl.methods.scaffold import Scaffold
from bespokefl.methods.selffl import SelfFL
from bespokefl.methods.ucfl import UCFL, UCFLParallel

REGISTRY: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Local,
        FedAvg,
        FedProx,
        Ditto,
        SelfFL,
        PersFL,
        PersFLGD,
        UCFL,
        UCFLParallel,
        PFedVEM,
        FedAvgFT,
        Scaffold,
        PerFedAvg,
        PFedMe,
        APFL,
        FedPer,
        FedRep,
        IFCA,
        CFL,
        FedFOMO,
        PFedBayes,
        Oracle,
    )
}

__all__ = [
    "APFL",
    "CFL",
    "IFCA",
    "REGISTRY",
    "UCFL",
    "Ditto",
    "FedAvg",
    "FedAvgFT",
    "FedFOMO",
    "FedPer",
    "FedProx",
    "FedRep",
    "Local",
    "Oracle",
    "PFedBayes",
    "PFedMe",
    "PFedVEM",
    "PerFedAvg",
    "PersFL",
    "PersFLGD",
    "Scaffold",
    "SelfFL",
    "UCFLParallel",
    "build",
    "find",
    "of",
]


def find(name: str) -> type[Method]:
    if name not in REGISTRY:
        raise unknown("method", name, REGISTRY, see="bespoke methods")
    return REGISTRY[name]


def build(name: str, hyper: dict[str, Any] | None = None) -> Method:
    """A method with these hyper-parameters; the rest are its defaults."""
    method = find(name)
    defaults, kinds = method().hyper(), get_type_hints(method)
    given: dict[str, Any] = {}
    for key, value in (hyper or {}).items():
        if key not in defaults:
            raise unknown(f"hyper-parameter of {name}", key, defaults, see=f"bespoke methods {name}")
        given[key] = _fitting(name, key, value, defaults[key], kinds[key])
    return method(**given)


def of(method: Method | str) -> Method:
    """A method as it is given, or by its name with its defaults."""
    found = build(method) if isinstance(method, str) else method
    if not isinstance(found, Method):
        raise InputError(f"method must be a method such as methods.Ditto() or its name, got {method!r}.")
    return found


def _fitting(name: str, key: str, value: Any, default: Any, kind: Any) -> Any:
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
        fits = default is None or isinstance(kind, UnionType)  # of int | str, the method itself knows more
        fits = fits or isinstance(value, type(default))
    if not fits:
        raise InputError(f"{key} of {name} must be a {type(default).__name__} such as {default!r}, got {value!r}.")
    return value
