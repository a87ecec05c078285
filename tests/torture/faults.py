"""The faults: what is broken, when and for how long, drawn from a seed before a run begins."""

import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass

from tests.torture.proxy import CUT, HOLD, OPEN
from tests.torture.world import CHILDREN, HONEST, SERVER, World, wait_for_end

NUM_DRAWN = 200  # faults of each kind of machine, more than a run can meet
PAUSES = (0.0, 4.0)  # seconds between two faults
RECOVERY = 200.0  # seconds after which the next fault comes although the run has made no progress since the last
IMPATIENT_SHARE = 0.2  # of the faults do not wait for progress: they hit what is about to recover
BLINK, LONG = (0.1, 4.0), (5.0, 40.0)  # seconds that a fault lasts; a long one outlasts a node's lease
LONG_SHARE = 0.15
CLOCKS = (-4000.0, -200.0, -20.0, 20.0, 200.0, 4000.0, 90_000.0)  # seconds


@dataclass(frozen=True)
class Fault:
    """Something that breaks, after a pause, and is mended after some seconds."""

    kind: str
    target: str
    pause: float
    seconds: float
    amount: float = 0.0  # seconds by which a clock jumps
    waits: bool = True  # until the run has made progress since the fault before


def draw(seed: str, kinds: list[tuple[str, str]]) -> list[Fault]:
    """The faults of one run that befall these kinds and targets."""
    rng = random.Random(seed)
    found = []
    for _ in range(NUM_DRAWN):
        kind, target = rng.choice(kinds)
        seconds = rng.uniform(*(LONG if rng.random() < LONG_SHARE else BLINK))
        pause, amount, waits = rng.uniform(*PAUSES), rng.choice(CLOCKS), rng.random() >= IMPATIENT_SHARE
        found.append(Fault(kind, target, pause, seconds, amount, waits))
    return found


def of_server() -> list[tuple[str, str]]:
    """What may befall the server's machine."""
    children = [*CHILDREN, "app"]
    return [
        *(("kill", what) for what in ("superlink", "superlink", "app", "app", "superexec")),
        *(("stop", what) for what in (*children, SERVER)),
        ("power failure", SERVER),
        ("clock", SERVER),
        ("full disk", SERVER),
    ]


def of_nodes(*, full_disks: bool) -> list[tuple[str, str]]:
    """What may befall nodes and their networks. A full disk loses uploads for good."""
    kinds = ["kill", "kill", "stop", "cut", "hold", "reset", "clock"] + (["full disk"] if full_disks else [])
    return [(kind, node) for node in HONEST for kind in kinds]


class Nemesis:
    """Breaks things, one after the other, until it is stopped; several may work at the same time."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self.world, self.faults = world, faults
        self.done: Counter[str] = Counter()  # by kind: how many have been
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Mend what is broken, and break nothing more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        for fault in self.faults:
            if fault.waits:
                self._await_progress()
            if self._stopped.wait(fault.pause):
                return
            self._note("begins", fault)
            self._break(fault)
            self._stopped.wait(fault.seconds)
            self._mend(fault)
            self._note("ends", fault)
            self.done[f"{fault.kind} {'node' if fault.target in HONEST else fault.target}"] += 1

    def _await_progress(self) -> None:
        before, until = self.world.progress(), time.monotonic() + RECOVERY
        while self.world.progress() == before and time.monotonic() < until and not self._stopped.wait(0.1):
            pass

    def _note(self, what: str, fault: Fault) -> None:
        with (self.world.folder / "faults.txt").open("a") as file:
            amount = f" by {fault.amount:g} s" if fault.kind == "clock" else ""
            file.write(f"{time.strftime('%H:%M:%S')} {fault.kind} {fault.target}{amount} {what}\n")

    def _break(self, fault: Fault) -> None:
        world, target = self.world, fault.target
        match fault.kind:
            case "kill":
                if target in HONEST:
                    world.down.add(target)
                wait_for_end(world.signal(target, signal.SIGKILL), 0.0)
            case "stop":
                world.signal(target, signal.SIGSTOP)
            case "power failure":
                world.kill_server_machine()
            case "cut" | "hold":
                world.proxies[target].set(CUT if fault.kind == "cut" else HOLD)
            case "reset":
                world.proxies[target].set(CUT)
                world.proxies[target].set(OPEN)
            case "clock":
                world.set_clock(target, fault.amount)
            case "full disk":
                world.fill_disk(target)

    def _mend(self, fault: Fault) -> None:
        world, target = self.world, fault.target
        match fault.kind:
            case "kill" if target in HONEST:
                world.down.discard(target)
            case "stop":
                world.signal(target, signal.SIGCONT)
            case "power failure":
                world.down.discard(SERVER)
            case "cut" | "hold":
                world.proxies[target].set(OPEN)
            case "clock":
                world.set_clock(target, 0.0)
            case "full disk":
                world.empty_disk(target)
