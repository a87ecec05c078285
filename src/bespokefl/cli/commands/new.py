"""`bespoke new`: write a method or a project to start from, with a test."""

import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from bespokefl.cli import output
from bespokefl.core.errors import InputError
from bespokefl.core.system.files import unwritten

app = typer.Typer(name="new", help="Write a method or a project of your own to start from.", no_args_is_help=True)

TEMPLATES = Path(__file__).parents[1] / "templates"
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name such as my_method.")]
Parent = Annotated[Path, typer.Option("--out", help="The directory to write to.")]


@app.command()
def method(name: Name, out: Parent = Path()) -> None:
    """Write a method as a module with a test.

    bespoke new method my_method
    """
    words = _words(name)
    module, title = words["name"], words["class_name"]
    _write(out, {f"{module}.py": "method.py", f"test_{module}.py": "test_method.py"}, words | {"module": module})
    output.record(path=out / f"{module}.py", files=[out / f"{module}.py", out / f"test_{module}.py"])
    print(f"Written: {out / module}.py, the method, and {out / f'test_{module}'}.py, its test. In that directory:")
    print(f"  bespoke run {module}:{title}\n  python -m pytest test_{module}.py")


@app.command()
def project(name: Name, out: Parent = Path()) -> None:
    """Write a project: a package with a method, the settings of a run, and a test.

    bespoke new project my_project
    """
    words = _words(name)
    package = words["name"]
    files = {
        "README.md": "project_readme.md",
        "pyproject.toml": "project.toml",
        "run.toml": "project_run.toml",
        f"{package}/__init__.py": "",
        f"{package}/method.py": "method.py",
        "tests/test_method.py": "test_method.py",
    }
    _write(out / package, files, words | {"module": f"{package}.method"}, new=True)
    output.record(path=out / package, files=[out / package / one for one in files])
    print(f"Written to {out / package}. In that directory:")
    print("  bespoke run --config run.toml\n  python -m pytest")


def _words(name: str) -> dict[str, str]:
    """The name as that of a module, of a class, and with hyphens."""
    module = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", module) or keyword.iskeyword(module):
        raise InputError(
            f"a name must be letters, digits and _, beginning with a letter, such as my_method, got {name!r}."
        )
    title = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    return {"name": module, "class_name": title, "dashed": module.replace("_", "-").lower()}


def _write(directory: Path, files: dict[str, str], words: dict[str, str], *, new: bool = False) -> None:
    there = (
        [directory] if new and directory.exists() else [directory / one for one in files if (directory / one).exists()]
    )
    if there:
        raise InputError(f"{str(there[0])!r} already exists; choose another name or another --out.")
    try:
        for file, template in files.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8").format(**words) if template else ""
            (directory / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritten(directory, error) from None
