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
trackers     callbacks that log a run to TensorBoard, MLflow or Weights & Biases
engines      the round loop, and the transports that carry messages to clients
workflows    run, compare, tune, diagnose, deploy, and the files they write
report       the HTML page of a comparison, a run or a diagnosis
cli          the `bespoke` command
"""

import ast
from importlib import import_module
from pathlib import Path

# Importing torch takes seconds, so each name is imported on first use, from the module that __init__.pyi names.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULE_OF = {one.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for one in node.names}
_RENAMED = {"descend": "local_sgd"}  # former names, which still work with a warning

__all__ = sorted(_MODULE_OF)


def __getattr__(name):
    if name == "__version__":
        value = import_module("importlib.metadata").version("bespokefl")
    elif name in _MODULE_OF:
        module = _MODULE_OF[name]
        value = import_module(f"bespokefl.{name}") if module == "bespokefl" else getattr(import_module(module), name)
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
