"""Methods, one module or package each. A new method needs an import here and an entry in `REGISTRY`."""

from typing import Any

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
    """Return the class of a registered method."""
    if name not in REGISTRY:
        raise unknown("method", name, REGISTRY, see="bespoke methods")
    return REGISTRY[name]


def build(name: str, hyper: dict[str, Any] | None = None) -> Method:
    """Return a registered method with these hyper-parameters, and its defaults for the others."""
    method = find(name)
    hyper = method.rename(hyper or {})
    for key in hyper:
        if key not in method().hyper():
            raise unknown(f"hyper-parameter of {name}", key, method().hyper(), see=f"bespoke methods {name}")
    return method(**hyper)


def of(method: Method | str) -> Method:
    """Return a method, given as such or by its name."""
    found = build(method) if isinstance(method, str) else method
    if not isinstance(found, Method):
        raise InputError(f"method must be a method such as methods.Ditto() or its name, got {method!r}.")
    return found
