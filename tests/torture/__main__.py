"""Torture a deployment, and check what it did: `make torture MINUTES=30`, or python -m tests.torture --seconds 60.

Runs follow each other until the time is over. Half of them must lose nothing: whatever breaks, all uploads count, and
every bit equals that of a run that nobody disturbed. In the other half the server waits only a few seconds for a node,
and disks of nodes are full: uploads get lost there, and have to be reported as lost. One node always lies.
"""

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.requirements import NAMESPACE
from tests.torture.runner import Torture

INSIDE = "BESPOKE_TORTURE_INSIDE"  # set in the namespace in which disks may be mounted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Torture a deployment.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for runs with faults, after the undisturbed ones")
    parser.add_argument("--seed", type=int, help="draws the faults; default: a new one")
    parser.add_argument("--methods", default="ditto,scaffold,pfedvem,fedavg")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--keep", action="store_true", help="keep the files of the deployment in any case")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    if INSIDE not in os.environ:
        arguments = [*sys.argv[1:], *([] if options.seed is not None else ["--seed", str(seed)])]
        command = [*NAMESPACE, sys.executable, "-m", "tests.torture", *arguments]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})
    chosen = f"--seconds {options.seconds:g} --seed {seed} --methods {options.methods} --rounds {options.rounds}"
    print(f"seed {seed}; to repeat: python -m tests.torture {chosen}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all processes of the deployment
    folder = Path(tempfile.mkdtemp(prefix="bespoke-torture-"))
    torture = Torture(folder, seed, options.methods.split(","), options.rounds)
    failed = True
    try:
        failed = torture.run(options.seconds)
    finally:
        torture.close()
        if failed or options.keep:
            print(f"files: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
