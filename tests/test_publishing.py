"""What is published: packages that work without the repository, containers, metadata, workflows."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import commands

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that is built from it."""
    source, made = tmp_path_factory.mktemp("source") / "bespoke", tmp_path_factory.mktemp("dist")
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    (source / "tests" / "test_of_the_repository.py").touch()
    for name in ("src", "evidence"):
        left_out = shutil.ignore_patterns("__pycache__", "cells", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return made


def files_of(made: Path) -> tuple[set[str], set[str]]:
    """The files of the sdist, without its top directory, and of the wheel."""
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        return inside, set(archive.namelist())


@pytest.mark.slow
def test_sdist_and_wheel_have_everything_that_runs(packages: Path) -> None:
    sdist, wheel = files_of(packages)
    skipped = ("__pycache__", ".egg-info")
    for root in ("src", "evidence"):
        tracked = subprocess.run(["git", "ls-files", root], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        own = {name for name in tracked.splitlines() if "/cells/" not in name and not any(s in name for s in skipped)}
        assert own <= sdist
        assert {name.removeprefix(f"{root}/") for name in own} <= wheel
    assert not [name for name in wheel | sdist if name.startswith("tests/")]  # they need the whole repository
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md"} <= sdist


@pytest.mark.slow
def test_links_of_the_description_work_outside_of_the_repository(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        described = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in described
    links = re.findall(r"\]\(([^)#]*)", described)
    own = f"{PROJECT['urls']['Source']}/"
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    for link in (link for link in links if link.startswith(own)):
        kind, branch, file = link.removeprefix(own).split("/", 2)
        assert kind in ("blob", "raw") and branch == "main" and (ROOT / file).exists(), link


@pytest.mark.slow
def test_the_wheel_runs_without_the_repository(packages: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    words = "run local --data digits --split iid --clients 4 --rounds 1 --model logistic --out result"
    script = f"""
import bespokefl, sys
assert bespokefl.__file__.startswith({str(target)!r}), bespokefl.__file__
from bespokefl.cli import main
sys.argv = ["bespoke", *{shlex.split(words)!r}]
main()
"""
    environment = os.environ | {"PYTHONPATH": str(target)}
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "result" / "clients.csv").is_file()


@pytest.mark.slow
def test_the_declared_dependencies_are_enough(packages: Path, tmp_path: Path) -> None:
    """In a new environment with the wheel, its dependencies and nothing else."""
    (wheel,) = packages.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    programs = tmp_path / "venv" / "bin"
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}

    def call(program: str, words: str) -> str:
        command = [str(programs / program), *shlex.split(words)]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    call("pip", f"install --quiet --constraint {shlex.quote(str(ROOT / 'constraints.txt'))} {shlex.quote(str(wheel))}")
    assert "No broken requirements" in call("pip", "check")
    assert str(programs.parent) in call("python", "-c 'import bespokefl; print(bespokefl.__file__, *dir(bespokefl))'")
    assert call("bespoke", "--version") == f"bespoke {PROJECT['version']}\n"
    call("bespoke", "run fedavg --rounds 1 --clients 4 --model logistic --out result")
    assert (tmp_path / "result" / "clients.csv").is_file()
    call("bespoke", "report result")


def test_metadata_name_the_project_and_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    headings = re.findall(
        r"^## (\S+)(?: \((\S+)\))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    released = next(one for one in headings if one[0] != "Unreleased")
    assert released == (PROJECT["version"], citation["date-released"])
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert citation["authors"][0]["name"] == PROJECT["authors"][0]["name"]
    assert all(url.startswith(PROJECT["urls"]["Source"]) for url in PROJECT["urls"].values())


@pytest.mark.parametrize("name", ["tests", "docs", "release"])
def test_workflows_call_what_there_is(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    for run in (step["run"] for step in steps if "run" in step):
        words = run.split()
        known = words[0] == "test" or run == ".ci/run" or words[:3] == ["gh", "release", "create"]
        assert known or (words[0] == "make" and words[1] in targets), run


def linter(name: str) -> str:
    """A program that the extra `dev` installs next to Python."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed: pip install --editable '.[dev]'")
    return found


def test_the_image_has_no_mistakes_that_a_linter_finds() -> None:
    ran = subprocess.run([linter("hadolint"), "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("compose.yaml", "compose-spec"),
        ("CITATION.cff", "citation-file-format"),
        *((f".github/workflows/{name}.yml", "github-workflows") for name in ("tests", "docs", "release")),
    ],
)
def test_files_follow_their_specification(file: str, schema: str) -> None:
    command = [linter("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", file]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_containers_run_commands_that_work(tmp_path: Path) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    (written,) = services["init"]["command"]
    told = commands.bespoke(
        *shlex.split(written.partition("|| bespoke ")[2].replace("/deployment", "made")), cwd=tmp_path
    )
    assert told.returncode == 0, told.stderr
    made = tmp_path / "made"
    nodes = {path.name for path in (made / "nodes").iterdir()}
    assert nodes == set(services) - {"init", "server"} and len(nodes) == 3
    for node in nodes:
        assert services[node]["command"] == ["deploy", "node", f"/deployment/nodes/{node}"]
        assert (made / "nodes" / node / "records.npz").is_file()
    server = tomllib.loads((made / "server" / "server.toml").read_text(encoding="utf-8"))
    assert server["address"] == "server:9092" and server["listen"] == "0.0.0.0"
    for name, service in services.items():
        assert service["image"] == "bespoke" and service["volumes"] == ["deployment:/deployment"], name


def test_the_image_has_what_it_copies_and_the_pinned_torch() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = [word for line in lines for word in line.split() if word.startswith("torch==")]
    assert torch in pins
    extras = [line.split("[")[1].split("]")[0] for line in lines if "pip install" in line and "[" in line]
    assert set(extras[0].split(",")) <= set(PROJECT["optional-dependencies"])
