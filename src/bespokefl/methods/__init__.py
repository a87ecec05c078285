"""Methods, one module or package each. A new method needs an import here and an entry in `REGISTRY`.

Methods of other packages have the name of an entry point or "module:Class" (see `core.user_input.plugins`).

Their papers are in citations.bib: the names of methods on one line, then the entry; a blank line ends it.
"""

from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, said, unknown
from bespokefl.core.method import Method
from bespokefl.core.user_input import plugins
from bespokefl.methods.apfl import APFL as APFL
from bespokefl.methods.cfl import CFL as CFL
from bespokefl.methods.ditto import Ditto as Ditto
from bespokefl.methods.fedala import FedALA as FedALA
from bespokefl.methods.fedavg import FedAvg as FedAvg
from bespokefl.methods.fedavg_ft import FedAvgFT as FedAvgFT
from bespokefl.methods.fedbn import FedBN as FedBN
from bespokefl.methods.feddbe import FedDBE as FedDBE
from bespokefl.methods.fedfomo import FedFOMO as FedFOMO
from bespokefl.methods.fedper import FedPer as FedPer
from bespokefl.methods.fedprox import FedProx as FedProx
from bespokefl.methods.fedrep import FedRep as FedRep
from bespokefl.methods.fedsa_lora import FedSALoRA as FedSALoRA
from bespokefl.methods.ifca import IFCA as IFCA
from bespokefl.methods.local import Local as Local
from bespokefl.methods.oracle import Oracle as Oracle
from bespokefl.methods.perfedavg import PerFedAvg as PerFedAvg
from bespokefl.methods.persfl import PersFL as PersFL
from bespokefl.methods.persfl import PersFLGD as PersFLGD
from bespokefl.methods.pfedbayes import PFedBayes as PFedBayes
from bespokefl.methods.pfedme import PFedMe as PFedMe
from bespokefl.methods.pfedvem import PFedVEM as PFedVEM
from bespokefl.methods.scaffold import Scaffold as Scaffold
from bespokefl.methods.selffl import SelfFL as SelfFL
from bespokefl.methods.ucfl import UCFL as UCFL
from bespokefl.methods.ucfl import UCFLParallel as UCFLParallel

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
        FedBN,
        FedSALoRA,
        IFCA,
        CFL,
        FedFOMO,
        PFedBayes,
        FedALA,
        FedDBE,
        Oracle,
    )
}
_FOUND: dict[str, type[Method]] = {}  # those of other packages that were used in this process
__all__ = ["REGISTRY", "build", "find", "name_of", "of", *(_method.__name__ for _method in REGISTRY.values())]

for _block in (Path(__file__).parent / "citations.bib").read_text(encoding="utf-8").strip().split("\n\n"):
    _names, _, _entry = _block.partition("\n")
    for _name in _names.split(", "):
        REGISTRY[_name].citation = _entry


def find(name: str) -> type[Method]:
    """Return the class of a method by its name, by that of an entry point, or by "module:Class"."""
    if name in REGISTRY:
        return REGISTRY[name]
    if name not in _FOUND:
        found = plugins.load(name, plugins.METHODS, "method")
        if found is None:
            known = [*REGISTRY, *plugins.entry_points(plugins.METHODS)]
            raise unknown("method", name, known, see="bespoke methods")
        _FOUND[name] = _checked(found, name)
    return _FOUND[name]


def _checked(found: Any, name: str) -> type[Method]:
    if not isinstance(found, type) or not issubclass(found, Method):
        got = found.__name__ if isinstance(found, type) else type(found).__name__
        raise InputError(f"method {name!r} must be a class derived from bespokefl.Method, got {got}.")
    try:
        found()
    except TypeError as error:
        raise InputError(
            f"method {name!r} must define local_update and newcomer, and its hyper-parameters need defaults: "
            f"{said(error)}."
        ) from None
    return found


def name_of(method: Method) -> str | None:
    """Return the name by which `find` returns the class of a method; None for one that came from Python."""
    if REGISTRY.get(method.name) is type(method):
        return method.name
    return next((name for name, kind in _FOUND.items() if kind is type(method)), None)


def title_of(method: Method) -> str:
    """Return the name of a method in tables, which is never that of another, built-in method."""
    own = method.name and REGISTRY.get(method.name, type(method)) is type(method)
    return method.name if own else type(method).__name__


def build(name: str, hyper: dict[str, Any] | None = None) -> Method:
    """Return a method by its name, with these hyper-parameters, and its defaults for the others."""
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
