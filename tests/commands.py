"""Run `bespoke` commands and Python scripts in processes of their own that need not import torch again.

A server imports the library once. Every command is a fork of it, with its own directory and output.
"""

import functools
import json
import os
import runpy
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
TIMEOUT = 600.0  # seconds


def bespoke(*words: object, cwd: Path | None = None, **streams: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command; `stdout` and `stderr` can be given as files to write to."""
    return _run({"command": [str(word) for word in words]}, cwd, streams)


def python(script: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script in its directory. It may call `run_bespoke(*words)` and `printed(expected, *values)`, see below."""
    return _run({"script": script.name}, script.parent, {})


def _run(job: dict[str, Any], cwd: Path | None, streams: dict[str, Path]) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory() as folder:
        files = {name: streams.get(name, Path(folder) / name) for name in ("stdout", "stderr")}
        job |= {"cwd": str(cwd or Path.cwd()), "environment": dict(os.environ)}
        job |= {name: str(file) for name, file in files.items()}
        code = _ask(_server(), job)
        said = {name: "" if name in streams else file.read_text(encoding="utf-8") for name, file in files.items()}
    return subprocess.CompletedProcess(job.get("command", job.get("script")), code, **said)


@functools.cache
def _server() -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the other core has other tests to run
    environment.pop("PYTHONUNBUFFERED", None)  # output is buffered, as usual
    command = [sys.executable, "-m", "tests.commands"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(server: "subprocess.Popen[bytes]", job: dict[str, Any]) -> int:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(job).encode() + b"\n")
    server.stdin.flush()
    answered, _, _ = select.select([server.stdout], [], [], TIMEOUT)
    if not answered:
        server.kill()
        _server.cache_clear()
        raise AssertionError(f"no end in {TIMEOUT:g} s: {job}")
    return int(server.stdout.readline())


# -- the server


def _serve() -> None:
    _import_library()
    answers = os.dup(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.close(answers)
            _perform(json.loads(line))
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _import_library() -> None:
    """Import what commands use; much of it is imported when it is used first."""
    import bespokefl
    import bespokefl.cli

    for name in bespokefl.__all__:
        getattr(bespokefl, name)
    x, y = [[0.0], [1.0]] * 12, [0, 1] * 12
    bespokefl.run("ditto", bespokefl.Clients.from_arrays(x, y, [0, 0, 1, 1] * 6), rounds=1, model="logistic", workers=1)


def _perform(job: dict[str, Any]) -> NoReturn:
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    for number, name in enumerate((os.devnull, job["stdout"], job["stderr"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY, 0o600), number)
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    if "script" in job:
        sys.path.insert(0, job["cwd"])
        sys.argv = [job["script"]]
        runpy.run_path(job["script"], {"run_bespoke": run_bespoke, "printed": printed}, run_name="__main__")
        sys.exit(0)
    _command(job["command"])


def _command(words: list[str]) -> NoReturn:
    from bespokefl import cli

    sys.argv = ["bespoke", *words]
    cli.main(words)
    sys.exit(0)


# -- for scripts


def run_bespoke(*words: str) -> None:
    """Run a command in a fork of the script."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _command(list(words))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"bespoke {' '.join(words)} ended with {code}"


def printed(expected: str, *values: object) -> None:
    """Print values, and compare this with a text that may have other last digits."""
    from tests.notebooks import is_close

    text = " ".join(map(str, values))
    print(text)
    assert is_close(text, expected, tolerance=0.01), f"prints {text!r}, and the page says {expected!r}"


if __name__ == "__main__":
    _serve()
