"""Runs of a deployment under faults, one after the other, and what they add up to."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from bespokefl.core.errors import BespokeError
from bespokefl.workflows.deploy import runs
from bespokefl.workflows.run.settings import RunSettings
from tests.torture import faults, history
from tests.torture.faults import Nemesis
from tests.torture.history import History
from tests.torture.recorded import METHODS
from tests.torture.world import HONEST, IMPATIENT, LIAR, PATIENT, World

LONGEST_RUN = 1500.0  # seconds; a run that takes longer hangs
MAY_FAIL = ("cannot write", "No space left", "before the run started")  # why a run may end: full disks, many kills
HOSTS = "tests.torture.recorded"


class Torture:
    """A deployment that is tortured."""

    def __init__(self, folder: Path, seed: int, methods: list[str], rounds: int) -> None:
        self.world, self.seed, self.methods, self.rounds = World(folder), seed, methods, rounds
        self.undisturbed: dict[str, tuple[History, dict[str, str]]] = {}  # by method
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, seconds: float) -> bool:
        """Torture for some time; returns whether something was wrong."""
        self.world.start()
        ends: float | None = None
        number = 0
        while ends is None or time.monotonic() < ends:
            method = self.methods[number // 2 % len(self.methods)]
            if method not in self.undisturbed:
                name = f"{method}-undisturbed"
                self._one(name, method, PATIENT, [])
                self.undisturbed[method] = History.read(self.world.history / name), self._models(name)
            ends = ends or time.monotonic() + seconds
            patient = number % 2 == 0
            self._tortured(f"{method}-{number}", method, patient=patient)
            number += 1
        self._report()
        return bool(self.problems)

    def close(self) -> None:
        """End all processes."""
        self.world.stop()

    # -- one run

    def _tortured(self, name: str, method: str, *, patient: bool) -> None:
        drawn = [
            faults.draw(f"{self.seed}/{name}/server", faults.of_server()),
            faults.draw(f"{self.seed}/{name}/nodes", faults.of_nodes(full_disks=not patient)),
        ]
        nemeses = [Nemesis(self.world, one) for one in drawn]
        result = self._one(name, method, PATIENT if patient else IMPATIENT, nemeses)
        for nemesis in nemeses:
            self.faults.update(nemesis.done)
        if result is None:
            return
        own = History.read(self.world.history / name)
        self._check(name, history.violations(own, self.rounds, result["lost"], self._names(result)))
        self.totals.update(
            runs=1, rounds=len(own.committed()), uploads=sum(len(one["uploads"]) for one in own.committed().values())
        )
        lost = {client: reasons for client, reasons in result["lost"].items() if client not in result["nodes"][LIAR]}
        self.totals["lost"] += sum(sum(reasons.values()) for reasons in lost.values())
        if patient:
            undisturbed, models = self.undisturbed[method]
            problems = [f"it lost {lost}"] if lost else []
            problems += history.differences(own, undisturbed)
            problems += ["its models differ from the undisturbed run's"] if self._models(name) != models else []
            self._check(name, problems)
            self.totals["equal to the bit"] += not problems

    def _one(self, name: str, method: str, timeouts: str, nemeses: list[Nemesis]) -> Mapping[str, Any] | None:
        """Start a run and follow it until it is done; returns the summary of its result."""
        began = time.monotonic()
        self.world.set_timeouts(timeouts)
        config = RunSettings(
            method=f"{HOSTS}:{METHODS[method].__name__}",
            data="deployment",
            set={"run": name},
            rounds=self.rounds,
            eval_every=0,
            model="logistic",
        )
        for nemesis in nemeses:
            nemesis.start()
        try:
            state = self._follow(name, config, began + LONGEST_RUN)
        finally:
            for nemesis in nemeses:
                nemesis.stop()
        if state != "done":  # what is broken is mended now
            state = self._follow(name, config, time.monotonic() + LONGEST_RUN / 3)
        directory = self.world.deployment.run_directory(name)
        seconds, done = time.monotonic() - began, sum(sum(one.done.values()) for one in nemeses)
        print(f"{name}: {state} after {seconds:.0f} s with {done} faults", flush=True)
        if state != "done":
            self._check(name, [f"it is {state}: {runs.read_status(directory)}"])
            return None
        found: Mapping[str, Any] = json.loads((directory / runs.RESULT / "result.json").read_text())
        return found

    def _follow(self, name: str, config: RunSettings, until: float) -> str:
        """Start the run as often as is needed, until it is done or the time is over."""
        deployment = self.world.deployment
        state = ""
        while time.monotonic() < until:
            self.world.restart_ended()
            status = runs.read_status(deployment.run_directory(name))
            state = str(status.get("state", ""))
            if state == "done":
                return state
            if state == "failed" and not any(word in str(status["error"]) for word in MAY_FAIL):
                self._check(name, [f"it failed: {status['error']}"])
            if state in ("", "failed"):
                self.totals[f"started again because {_reason(status)}" if state else "starts"] += 1
                try:
                    runs.start(deployment, config, name)
                except BespokeError as error:
                    self.totals[f"start: {_reason({'error': error})}"] += 1
                    time.sleep(1.0)
            time.sleep(0.2)
        return state

    # -- what is checked

    def _check(self, name: str, problems: list[str]) -> None:
        for problem in problems:
            print(f"PROBLEM in {name}: {problem}", flush=True)
            self.problems.append(f"{name}: {problem}")

    def _names(self, result: Mapping[str, Any]) -> list[str]:
        return [client for clients in result["nodes"].values() for client in clients]

    def _models(self, name: str) -> dict[str, str]:
        """A hash of the models in each file."""
        root = self.world.deployment.root
        files = [*sorted((root / "nodes").glob(f"*/state/{name}/personal.safetensors"))]
        files += sorted((self.world.deployment.run_directory(name) / runs.RESULT).glob("**/*.safetensors"))
        assert len(files) > len(HONEST), "an undisturbed run must leave models at every node and at the server"
        return {str(one.relative_to(root)).replace(name, ""): _hash(one) for one in files}

    def _report(self) -> None:
        restarts = {f"{name} ended by itself": times for name, times in self.world.restarts.items()}
        logs = [*(self.world.folder / "logs").glob("*.txt"), *self.world.deployment.server.glob("runs/*/log.txt")]
        for output in sorted(logs):
            count = output.read_text(errors="replace").count("Traceback (most")
            if count:
                self._check(str(output.relative_to(self.world.folder)), [f"{count} tracebacks"])
        print(json.dumps({"faults": dict(self.faults.most_common()), **self.totals, **restarts}, indent=2), flush=True)
        print(f"{len(self.problems)} problems", flush=True)


def _reason(status: Mapping[str, Any]) -> str:
    """The beginning of an error, without what differs each time."""
    return " ".join(str(status.get("error", "")).split()[:12])


def _hash(path: Path) -> str:
    """Of the tensors; the header has settings, such as the run's name."""
    found = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return found.hexdigest()[:16]
