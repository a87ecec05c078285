"""Bespoke: personalized federated learning, in which every client of a federation gets its own model.

    import bespokefl as bf

    clients = bf.load("digits").split(bf.splits.Dirichlet(alpha=0.4), clients=20, seed=0)
    result = bf.run(bf.methods.Ditto(), clients, model="mlp", rounds=20, seed=0)

core         tasks, models as rows of a matrix, the interface of a method, random numbers, errors
data         data sets, their preprocessing, and splits into clients
methods      one module per federated learning method
models       built-in models, and loading your own
metrics      scores per client, fairness, significance, communication
theory       closed forms and bounds from the papers
engines      the round loop, and the transports that carry messages to clients
workflows    run, compare, tune, diagnose, deploy, and the files they write
report       the HTML page of a comparison, a run or a diagnosis
cli          the `bespoke` command
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bespokefl import methods as methods
    from bespokefl import metrics as metrics
    from bespokefl import models as models
    from bespokefl import theory as theory
    from bespokefl.core.errors import BespokeError as BespokeError
    from bespokefl.core.errors import DiskError as DiskError
    from bespokefl.core.errors import InputError as InputError
    from bespokefl.core.errors import TrainingError as TrainingError
    from bespokefl.core.local_sgd import local_sgd as local_sgd
    from bespokefl.core.method import Message as Message
    from bespokefl.core.method import Method as Method
    from bespokefl.core.method import Phase as Phase
    from bespokefl.core.rows import Rows as Rows
    from bespokefl.core.task import Task as Task
    from bespokefl.data import splits as splits
    from bespokefl.data.clients import Clients as Clients
    from bespokefl.data.dataset import Dataset as Dataset
    from bespokefl.data.sources.loader import load as load
    from bespokefl.workflows.compare.api import compare as compare
    from bespokefl.workflows.compare.existing_runs import compare_runs as compare_runs
    from bespokefl.workflows.compare.result import Comparison as Comparison
    from bespokefl.workflows.diagnose.api import diagnose as diagnose
    from bespokefl.workflows.diagnose.result import Diagnosis as Diagnosis
    from bespokefl.workflows.newcomers.personalize import personalize as personalize
    from bespokefl.workflows.results.result import Result as Result
    from bespokefl.workflows.results.result import load_run as load_run
    from bespokefl.workflows.run.api import resume as resume
    from bespokefl.workflows.run.api import run as run
    from bespokefl.workflows.tune.api import tune as tune

    __version__: str
else:
    # Importing torch takes seconds, so each name is imported on first use.
    _SUBMODULES = {
        "methods": "bespokefl.methods",
        "metrics": "bespokefl.metrics",
        "models": "bespokefl.models",
        "splits": "bespokefl.data.splits",
        "theory": "bespokefl.theory",
    }
    _EXPORTS = {
        "bespokefl.core.errors": ("BespokeError", "DiskError", "InputError", "TrainingError"),
        "bespokefl.core.local_sgd": ("local_sgd",),
        "bespokefl.core.method": ("Message", "Method", "Phase"),
        "bespokefl.core.rows": ("Rows",),
        "bespokefl.core.task": ("Task",),
        "bespokefl.data.clients": ("Clients",),
        "bespokefl.data.dataset": ("Dataset",),
        "bespokefl.data.sources.loader": ("load",),
        "bespokefl.workflows.compare.api": ("compare",),
        "bespokefl.workflows.compare.existing_runs": ("compare_runs",),
        "bespokefl.workflows.compare.result": ("Comparison",),
        "bespokefl.workflows.diagnose.api": ("diagnose",),
        "bespokefl.workflows.diagnose.result": ("Diagnosis",),
        "bespokefl.workflows.newcomers.personalize": ("personalize",),
        "bespokefl.workflows.results.result": ("Result", "load_run"),
        "bespokefl.workflows.run.api": ("resume", "run"),
        "bespokefl.workflows.tune.api": ("tune",),
    }
    _MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}
    _RENAMED = {"descend": "local_sgd"}  # former names, which still work with a warning

    __all__ = sorted([*_SUBMODULES, *_MODULE_OF])

    def __getattr__(name):
        if name == "__version__":
            value = import_module("importlib.metadata").version("bespokefl")
        elif name in _SUBMODULES:
            value = import_module(_SUBMODULES[name])
        elif name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
        elif name in _RENAMED:
            new = _RENAMED[name]
            import_module("warnings").warn(f"bf.{name} is now bf.{new}", FutureWarning, stacklevel=2)
            return __getattr__(new)
        else:
            raise AttributeError(f"module 'bespokefl' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})
