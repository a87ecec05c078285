"""Compare the results of this checkout with those of another one, bit by bit.

    PYTHONPATH=src python tests/regression_net.py record FILE   # write the hashes of this checkout
    PYTHONPATH=src python tests/regression_net.py check FILE    # compare this checkout with them

Hashes depend on the processor and on the version of torch, so this is a script and not a test: record with the old
checkout and check with the new one, on the same machine. `--only TEXT` selects the cases whose name contains TEXT.

What is compared: for every registered method, two seeds, with and without partial participation, the personal models,
the table of clients and the server's state; the same with faults, with clipping and noise, and with newcomers for some
methods; one comparison, one tuning, one diagnosis and one deployed run. Columns that only the new checkout writes are
not compared.
"""

import argparse
import csv
import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

import bespokefl as bf

FILES = ("personal.safetensors", "clients.csv", "server.safetensors", "newcomers.csv")
VARIANTS = {
    "faults": {"faults": "nan:0.1, slow:0.2, drop:0.2"},
    "private": {"clip": 1.0, "noise": 0.5},
    "newcomers": {"newcomers": 0.2, "keep_rounds": True},
    "chunk": {"chunk": 1, "precision": "float64"},
}
VARIED = ("fedavg", "selffl", "persfl", "ucfl", "ucfl-parallel", "pfedvem", "scaffold", "pfedbayes", "cfl")

Hashes = dict[str, str]


def cases() -> Iterator[tuple[str, Callable[[Path], Hashes]]]:
    """Every case: its name, and what computes its hashes in a folder."""
    for name in bf.methods.REGISTRY:
        for seed in (0, 1):
            for participation in (1.0, 0.5):
                yield f"run {name} seed={seed} participation={participation}", _run(name, seed, participation)
    for name in VARIED:
        for variant, options in VARIANTS.items():
            if variant == "newcomers" and name not in ("persfl", "fedavg"):
                options = {"newcomers": 0.2}
            yield f"run {name} {variant}", _run(name, 0, 0.5, **options)
    common = ["--data", "digits", "--clients", "8", "--rounds", "3", "--workers", "2", "--quiet"]
    yield "compare", _command("compare", ["ditto", "ucfl", "--no-tune", "--seeds", "0,1", *common], ("clients.csv",))
    grid = ["ditto", "--grid", "lr=0.05,0.1", *common]
    yield "tune", _command("tune", grid, ("grid.csv",))
    yield (
        "diagnose",
        _command("diagnose", ["--data", "digits", "--clients", "8", "--workers", "2", "--quiet"], ("diagnosis.json",)),
    )
    for name in ("selffl", "ucfl"):
        options = ["demo", "--method", name, "--rounds", "3"]
        yield f"deploy {name}", _command("deploy", options, ("clients.csv", "server.safetensors"))


def _run(name: str, seed: int, participation: float, **options: object) -> Callable[[Path], Hashes]:
    def compute(folder: Path) -> Hashes:
        clients = bf.load("digits").split("rotation(groups=4)", clients=8, seed=seed)
        private = "clip" in options
        budget = {"batch_size": 32, "rounds": 4, "workers": 2, "eval_every": 2}
        try:
            result = bf.run(name, clients, participation=participation, seed=seed, **budget, **options)
        except bf.InputError:
            if private or "newcomers" in options:
                return {"refused": "yes"}
            raise
        result.save(folder / "run")
        return _hashes(folder / "run", FILES)

    return compute


def _command(name: str, options: list[str], files: tuple[str, ...]) -> Callable[[Path], Hashes]:
    def compute(folder: Path) -> Hashes:
        command = [sys.executable, "-m", "bespokefl.cli", name, *options, "--out", str(folder / "out")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = _hashes(folder / "out", files)
        if not found:
            raise SystemExit(f"{name} wrote none of {files}: {sorted(one.name for one in (folder / 'out').iterdir())}")
        return found

    return compute


def _hashes(folder: Path, names: tuple[str, ...]) -> Hashes:
    paths = [folder / name for name in names if (folder / name).is_file()]
    contents = {part: content for path in paths for part, content in _contents(path)}
    return {part: hashlib.sha256(content).hexdigest() for part, content in contents.items()}


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """What must not change: tensors without metadata, columns without timings, numbers without the prose about them."""
    if path.suffix == ".safetensors":
        tensors = load_file(path)
        raw = {name: tensor.reshape(-1).contiguous().view(torch.uint8).numpy() for name, tensor in tensors.items()}
        yield path.name, b"".join(name.encode() + raw[name].tobytes() for name in sorted(raw))
    elif path.suffix == ".json":
        yield path.name, json.dumps(_numbers(json.loads(path.read_text()))).encode()
    else:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for column in rows[0]:
            if "second" not in column:
                yield f"{path.name}:{column}", json.dumps([row[column] for row in rows]).encode()


def _numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in sorted(value.items()) if "second" not in key and key != "version"}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return None if isinstance(value, str) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    logging.getLogger("bespokefl").setLevel(logging.ERROR)
    before = json.loads(arguments.file.read_text()) if arguments.what == "check" else {}
    found: dict[str, Hashes] = {}
    compared = differing = 0
    for name, compute in cases():
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[name] = compute(Path(folder))
        if arguments.what == "check":
            compared += len(before[name])
            wrong = [part for part, expected in before[name].items() if found[name].get(part) != expected]
            differing += len(wrong)
            if wrong:
                print(f"DIFFERENT  {name}: {', '.join(wrong)}", flush=True)
    if arguments.what == "record":
        arguments.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"recorded {len(found)} cases, {sum(map(len, found.values()))} files and columns")
        return
    print(f"compared {len(found)} cases, {compared} files and columns: {differing} differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
