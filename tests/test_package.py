"""Test the package as a whole: import time, public names, and the rules of the test suite."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bespokefl

ROOT = Path(__file__).parent.parent


def test_import_is_quick_and_does_not_import_torch() -> None:
    script = (
        "import sys, time; start = time.process_time(); import bespokefl; "
        "print(time.process_time() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert float(printed[0]) < 2
    assert printed[1:] == ["False", "False"]


def test_a_run_imports_no_more_than_it_needs() -> None:
    script = (
        "import sys; import bespokefl as bf; clients = bf.load('digits').split('iid', clients=3, seed=0); "
        "bf.run('fedavg', clients, rounds=1, model='logistic'); "
        "heavy = 'scipy', 'sklearn', 'matplotlib', 'pandas', 'flwr', 'ray', 'datasets', 'bespokefl_evidence'; "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_version_is_the_one_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert bespokefl.__version__ == project["version"]


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    stub = ast.parse((ROOT / "src" / "bespokefl" / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: (node.module, alias.name) for node in imports for alias in node.names}
    assert sorted(seen) == bespokefl.__all__
    for name, (module, original) in seen.items():
        assert getattr(bespokefl, name) is getattr(importlib.import_module(str(module)), original)


@pytest.mark.parametrize("name", bespokefl.__all__)
def test_every_public_name_is_reachable(name: str) -> None:
    assert name in dir(bespokefl)
    value = getattr(bespokefl, name)
    assert value.__name__.rpartition(".")[2] == name


def public(module: ModuleType, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a module offers, with its path from `bf`: its submodules, functions and classes, and their methods."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    for name in names:
        value, where = getattr(module, name), f"{path}.{name}"
        if name.startswith("_") or not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield where, value
        if inspect.ismodule(value):
            yield from public(value, where)
        elif inspect.isclass(value):
            for member, method in vars(value).items():
                described = inspect.isroutine(method) or isinstance(method, property)
                if described and not member.startswith("_"):
                    yield f"{where}.{member}", method


EVERYTHING = dict(public(bespokefl, "bf"))


def test_everything_public_has_a_docstring() -> None:
    assert {"bf.theory.bounds.theorem1", "bf.metrics.fairness.jain", "bf.Result.summary"} <= EVERYTHING.keys()
    missing = {name for name, value in EVERYTHING.items() if not inspect.getdoc(value)}
    assert missing == set()


@pytest.mark.parametrize("name", [name for name in bespokefl.__all__ if inspect.ismodule(getattr(bespokefl, name))])
def test_submodules_are_reachable_from_the_package(name: str) -> None:
    """In a new interpreter, where no other module has imported them."""
    paths = [path for path in EVERYTHING if path.startswith(f"bf.{name}.")]
    assert paths
    script = "import sys, bespokefl as bf\nfor path in sys.argv[1:]: eval(path)"
    subprocess.run([sys.executable, "-c", script, *paths], check=True)


MODULES = {path.relative_to(ROOT / "src" / "bespokefl"): path for path in (ROOT / "src" / "bespokefl").rglob("*.py")}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
MANY_PARAMETERS = {"core/local_sgd.py:local_sgd", "data/tables/table.py:from_columns", "engines/reference.py:__call__"}


def test_functions_are_short_and_have_few_parameters() -> None:
    """At most 80 lines and 10 parameters."""
    long, many = set(), set()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                where = f"{name.as_posix()}:{node.name}"
                if node.end_lineno is not None and node.end_lineno - node.lineno >= 80:
                    long.add(where)
                if len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) > 10:
                    many.add(where)
    assert long == set()
    assert many <= MANY_PARAMETERS


def test_packages_list_their_modules() -> None:
    packages = {name.parent: tree for name, tree in TREES.items() if name.name == "__init__.py"}
    missing = []
    for name in TREES:
        module, package = (name, name.parent) if name.name != "__init__.py" else (name.parent, name.parent.parent)
        if package == Path("methods") or module.stem.startswith("_") or module == Path():
            continue
        lines = re.findall(r"^(\w[\w/, ]*?) {2,}", ast.get_docstring(packages[package]) or "", re.MULTILINE)
        if module.stem not in re.findall(r"\w+", " ".join(lines)):
            missing.append(name.as_posix())
    assert missing == []


CLASSES = {node.name: node for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)}


def documented_elsewhere(one: ast.ClassDef) -> set[str]:
    """Methods of base classes, of protocols, and those that torch calls."""
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in one.bases]
    names = {"forward"}
    for base in [CLASSES[name] for name in bases if name in CLASSES and name != one.name]:
        names |= documented_elsewhere(base) | {node.name for node in base.body if isinstance(node, ast.FunctionDef)}
    protocols = [
        other for other in CLASSES.values() if "Protocol" in map(ast.unparse, other.bases) and other is not one
    ]
    return names | {node.name for other in protocols for node in other.body if isinstance(node, ast.FunctionDef)}


def test_public_functions_classes_and_methods_have_docstrings() -> None:
    """Other than those of `bf`, also in modules that users do not import."""
    found: list[tuple[Path, ast.stmt]] = []
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found.append((name, node))
                if isinstance(node, ast.ClassDef):
                    known = documented_elsewhere(node)
                    found += [(name, member) for member in node.body if getattr(member, "name", "") not in known]
    missing = {
        f"{name.as_posix()}:{node.name}"
        for name, node in found
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    }
    assert missing == set()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'dito'"):
        bespokefl.dito  # noqa: B018


SKIPPED = {
    "a mark": "import pytest\n@pytest.mark.skip(reason='tired')\ndef test_it(): pass\n",
    "a call": "import pytest\ndef test_it(): pytest.skip('tired')\n",
    "a fixture": "import pytest\n@pytest.fixture\ndef one(): pytest.skip('tired')\ndef test_it(one): pass\n",
    "a module": "import pytest\npytest.importorskip('no_such_module', reason='tired')\ndef test_it(): pass\n",
    "an expected failure": "import pytest\n@pytest.mark.xfail(reason='tired')\ndef test_it(): assert False\n",
}


@pytest.mark.slow
def test_in_ci_a_skipped_test_fails(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_that_runs.py").write_text("def test_it(): pass\n")
    for number, text in enumerate(SKIPPED.values()):
        (tmp_path / f"test_{number}.py").write_text(text)

    def outcome(ci: str) -> tuple[int, str]:
        options = ["-q", "--rootdir=.", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", *options, "."]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"CI": ci}, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()[-1].rpartition(" in ")[0]

    assert outcome(ci="") == (0, "1 passed, 4 skipped, 1 xfailed")
    assert outcome(ci="true") == (1, "2 failed, 1 passed, 3 errors")
