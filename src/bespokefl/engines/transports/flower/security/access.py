"""What the processes of a server know about who may ask for what. It reaches them through an environment variable.

The variable has paths and a hash, no secret: other accounts may not read the files, and need not.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from bespokefl.core.errors import InputError
from bespokefl.engines.transports.flower.security.signing import Signer, Verifier, read_public_keys

VARIABLE = "BESPOKE_ACCESS"


@dataclass(frozen=True)
class Access:
    """The secret and the keys of a deployment, and the only app that may be started in it."""

    secret: str  # a file
    keys: str | None  # a directory with the nodes' public keys; None: no authentication, on 127.0.0.1 only
    app: str  # the hash of the app

    @classmethod
    def of_process(cls) -> "Access":
        """What the environment of this process says."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        """The environment variable for a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    def signer(self) -> Signer:
        """Signs requests of the server's own processes."""
        return Signer(read_secret(Path(self.secret)))

    def verifier(self) -> Verifier:
        """Verifies requests to the SuperLink."""
        keys = {} if self.keys is None else read_public_keys(Path(self.keys))
        return Verifier(read_secret(Path(self.secret)), keys)


def read_secret(path: Path) -> bytes:
    """Read a deployment's secret; raise InputError if this account may not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the deployment's secret {str(path)!r} ({error.strerror or error}): use the account that runs "
            "bespoke deploy server."
        ) from None
