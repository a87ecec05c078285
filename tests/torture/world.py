"""A deployment on this machine whose processes, networks, disks and clocks can be broken and mended."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bespokefl.data import load
from bespokefl.workflows.deploy import demo, runs
from bespokefl.workflows.deploy.init import init
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import Process, end, kill, spawn
from tests.torture.proxy import Proxy
from tests.torture.recorded import HISTORY_VARIABLE

ROOT = Path(__file__).parents[2]
HONEST = {"north": 2, "south": 1, "west": 3}  # nodes, and how many clients they have
LIAR, STRANGER = "liar", "stranger"
CLIENTS = HONEST | {LIAR: 1, STRANGER: 1}
SERVER = "server"
CHILDREN = {
    "superlink": "bespokefl.engines.transports.flower.services.superlink",
    "superexec": "bespokefl.engines.transports.flower.services.superexec",
}
DISKS = {SERVER: 64 << 20} | dict.fromkeys(HONEST, 4 << 20)  # bytes of the disk of each
CLOCK, CLOCK_VARIABLE = Path(__file__).parent / "clock", "BESPOKE_CLOCK"
LONGEST_START = 300.0  # seconds
PATIENT = "timeout = 100000\ngive_up = 100000\ngather = 100000\nresend = 5\n"
IMPATIENT = "timeout = 5\nminimum = 2\ngive_up = 100000\ngather = 100000\nresend = 3\n"


class World:
    """The deployment, in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.history, self.clocks = folder, folder / "history", folder / "clocks"
        self.deployment: Deployment = init(folder / "torture", list(CLIENTS), f"127.0.0.1:{demo.free_port()}")
        demo.distribute(load("digits").split("dirichlet(alpha=0.4)", clients=8, seed=0), self.deployment.root, CLIENTS)
        self.proxies = {node: Proxy(self.deployment.settings.port) for node in HONEST}
        for node in CLIENTS:
            self._write_node(node)
        self.clocks.mkdir()
        for name in (SERVER, *CLIENTS):
            self.set_clock(name, 0.0)
        for name, size in DISKS.items():
            _mount(self.disk(name), size)
        self.processes: dict[str, Process] = {}
        self.down: set[str] = set()  # what is killed on purpose and not to be restarted yet
        self.restarts: dict[str, int] = {}  # by name: how often it ended by itself
        self._settings = (self.deployment.server / "server.toml").read_text()

    def _write_node(self, node: str) -> None:
        file = self.deployment.root / "nodes" / node / "node.toml"
        text = file.read_text()
        if node in self.proxies:
            text = re.sub(r'(?m)^server = ".*"$', f'server = "127.0.0.1:{self.proxies[node].port}"', text)
        file.write_text(text + 'modules = ["tests.torture.recorded"]\n')

    def disk(self, name: str) -> Path:
        """The directory that is a disk of its own."""
        root = self.deployment.root
        return root / "server" if name == SERVER else root / "nodes" / name / "state"

    # -- processes

    def start(self) -> None:
        """Start everything."""
        for name in (SERVER, *CLIENTS):
            self.launch(name)
        until = time.monotonic() + LONGEST_START
        for name, process in self.processes.items():
            while demo.READY not in self.output(name).read_text():
                if process.poll() is not None or time.monotonic() > until:
                    raise AssertionError(f"{name} did not start: {self.output(name).read_text()}")
                time.sleep(0.1)

    def launch(self, name: str) -> None:
        """Start the server or a node. Only the main thread may: processes end with the thread that started them."""
        root = self.deployment.root
        if name == SERVER:
            command = ["-m", "bespokefl.cli", "deploy", "server", str(root)]
        elif name in (LIAR, STRANGER):
            command = ["-m", "tests.torture.node", str(root / "nodes" / name), name]
        else:
            command = ["-m", "bespokefl.cli", "deploy", "node", str(root / "nodes" / name)]
        environment = {
            "PYTHONPATH": os.pathsep.join([str(CLOCK), str(ROOT)]),
            CLOCK_VARIABLE: str(self.clocks / name),
            HISTORY_VARIABLE: str(self.history),
        }
        self.processes[name] = spawn([sys.executable, *command], self.output(name), environment, append=True)

    def restart_ended(self) -> None:
        """Restart the processes that have ended, as a service manager does."""
        for name, process in self.processes.items():
            if name not in self.down and process.poll() is not None:
                self.restarts[name] = self.restarts.get(name, 0) + (process.returncode != -signal.SIGKILL)
                self.launch(name)

    def signal(self, what: str, number: int) -> int | None:
        """Send a signal to a node, to `server`, to one of its children, or to the app of a run; returns its id."""
        pid = self.pid(what)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def pid(self, what: str) -> int | None:
        """The process id of a node, of `server`, of one of its children, or of the server app."""
        if what == "app":
            active = list(runs.list_runs(self.deployment))
            return runs.locking_pid(self.deployment.run_directory(active[-1])) if active else None
        if what in CHILDREN:
            return _child(self.processes[SERVER].pid, CHILDREN[what])
        process = self.processes[what]
        return process.pid if process.poll() is None else None

    def progress(self) -> tuple[int, object, object]:
        """What changes when the latest run gets on: the number of runs, its state and its round."""
        found = runs.list_runs(self.deployment)
        status = found[max(found, key=lambda name: found[name].get("time", 0))] if found else {}
        return len(found), status.get("state"), status.get("round")

    def kill_server_machine(self) -> None:
        """Kill the server and all that it started, as a power failure does."""
        self.down.add(SERVER)
        for pid in [self.pid(what) for what in (SERVER, *CHILDREN, "app")]:
            kill(pid)
        self.processes[SERVER].wait()

    def stop(self) -> None:
        """End everything."""
        for proxy in self.proxies.values():
            proxy.set("open")
        for what in (*CLIENTS, SERVER, *CHILDREN, "app"):
            self.signal(what, signal.SIGCONT)
        end(*(process for name, process in self.processes.items() if name != SERVER))
        end(self.processes[SERVER])
        for proxy in self.proxies.values():
            proxy.close()

    def output(self, name: str) -> Path:
        """What a process prints."""
        return self.folder / "logs" / f"{name}.txt"

    # -- settings, clocks and disks

    def set_timeouts(self, text: str) -> None:
        """Set how long the server waits in the runs that start now."""
        (self.deployment.server / "server.toml").write_text(self._settings + text)

    def set_clock(self, name: str, seconds: float) -> None:
        """Put the clock of the server's or a node's processes forward."""
        temporary = self.clocks / f".{name}"
        temporary.write_text(f"{seconds:.1f}\n")
        temporary.replace(self.clocks / name)

    def fill_disk(self, name: str) -> None:
        """Leave no space on a disk."""
        with suppress(OSError), (self.disk(name) / ".ballast").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def empty_disk(self, name: str) -> None:
        """Make space on a disk."""
        (self.disk(name) / ".ballast").unlink(missing_ok=True)


def wait_for_end(pid: int | None, seconds: float = 30.0) -> None:
    """Wait until a process is gone."""
    until = time.monotonic() + seconds
    while pid is not None and Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)


def _mount(directory: Path, size: int) -> None:
    """Put a small disk where a directory is, with its content."""
    before = directory.with_name(f".{directory.name}")
    directory.rename(before)
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(directory)], check=True)
    shutil.copytree(before, directory, dirs_exist_ok=True)


def _child(parent: int, what: str) -> int | None:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            above = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if above == parent and what in (place / "cmdline").read_bytes().decode():
                return int(place.name)
    return None
