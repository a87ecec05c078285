"""The folder of a deployment: where everything is that `bespoke deploy init` wrote, and what the settings say.

README.md                 what to do on which machine
authority/ca.key          vouches for the server; to be kept offline
server/server.toml        the server's settings
server/app/               the Flower app
server/certificates/      ca.crt, server.crt, server.key
server/keys/NAME.pub      the nodes that are let in
server/runs/NAME/         a run: config.toml, status.json, checkpoints, result
nodes/NAME/node.toml      a node's settings: copy its folder to that machine
nodes/NAME/ca.crt, node.key, node.pub
"""

import logging
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.files import unwritten
from bespokefl.engines.transports.flower.run_names import check_run
from bespokefl.engines.transports.flower.timeouts import Timeouts
from bespokefl.workflows.deploy.addresses import is_host, port_of

log = logging.getLogger("bespokefl")

NODE_ID = "node-id"  # the file beside a node's runs in which it keeps its number
PLACE = "BESPOKE_DEPLOYMENT"  # the environment variable that names the deployment's folder to Flower's apps
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # all networks, and how this machine is reached then


@dataclass(frozen=True)
class ServerSettings:
    address: str
    listen: str = "127.0.0.1"
    insecure: bool = False
    minimum: int = Timeouts.minimum
    timeout: float = Timeouts.timeout
    give_up: float = Timeouts.give_up
    gather: float = Timeouts.gather
    resend: float = Timeouts.resend

    def __post_init__(self) -> None:
        port_of(self.address)
        if not is_host(f"[{self.listen}]" if ":" in self.listen else self.listen):
            raise InputError(f"listen in server.toml must be an address such as 0.0.0.0, got {self.listen!r}.")
        if self.minimum < 1:
            raise InputError(f"minimum in server.toml must be at least 1 client, got {self.minimum}.")
        for name in ("timeout", "give_up", "gather", "resend"):
            seconds = getattr(self, name)
            if not (seconds > 0 and math.isfinite(seconds)):
                raise InputError(f"{name} in server.toml must be a number of seconds greater than 0, got {seconds}.")

    @property
    def port(self) -> int:
        return port_of(self.address)

    @property
    def patience(self) -> Timeouts:
        return Timeouts(
            minimum=self.minimum,
            timeout=self.timeout,
            give_up=self.give_up,
            gather=self.gather,
            resend=self.resend,
        )


@dataclass(frozen=True)
class NodeSettings:
    name: str
    server: str
    data: str | None = None
    label: str | None = None
    client: str | None = None
    prefix: bool = False
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    seed: int = 0
    state: str = "state"
    device: str = "cpu"
    model: str | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        port_of(self.server)
        if not (self.noise >= 0 and math.isfinite(self.noise)):
            raise InputError(f"noise in node.toml must be a number that is at least 0, got {self.noise}.")


@dataclass(frozen=True)
class Deployment:
    """The server's part of the folder."""

    root: Path

    @classmethod
    def at(cls, folder: Path) -> "Deployment":
        if not (folder / "server" / "server.toml").is_file():
            raise InputError(
                f"{str(folder)!r} is not the folder of a deployment: it has no server/server.toml; write one with "
                "bespoke deploy init."
            )
        return cls(folder.resolve())

    @property
    def server(self) -> Path:
        return self.root / "server"

    @property
    def settings(self) -> ServerSettings:
        return ServerSettings(**_read(self.server / "server.toml", ServerSettings))

    @property
    def authority(self) -> Path | None:
        """The certificate that vouches for the server; None without TLS."""
        return None if self.settings.insecure else self.server / "certificates" / "ca.crt"

    @property
    def host(self) -> str:
        """The host by which the server is reached on its own machine."""
        return EVERYWHERE.get(self.settings.listen, self.settings.listen)

    @property
    def local(self) -> str:
        """The server's address on its own machine."""
        return f"[{self.host}]:{self.settings.port}" if ":" in self.host else f"{self.host}:{self.settings.port}"

    @property
    def nodes(self) -> dict[str, Path]:
        """The public keys of the nodes that are let in."""
        return {path.stem: path for path in sorted((self.server / "keys").glob("*.pub"))}

    def run(self, name: str) -> Path:
        if name == NODE_ID:
            raise InputError(f"a run cannot be called {name!r}: nodes have a file of that name; choose another.")
        return self.server / "runs" / check_run(name)


def node_folder(folder: Path, name: str | None) -> Path:
    """The folder of a node, within a deployment's or by itself."""
    for place in (folder, *([folder / "nodes" / name] if name else [])):
        if (place / "node.toml").is_file():
            return place.resolve()
    there = sorted(path.parent.name for path in folder.glob("nodes/*/node.toml"))
    if there and name:
        raise unknown("node", name, there)
    if there:
        raise InputError(f"{str(folder)!r} has several nodes: name one, as in --name {there[0]}.")
    raise InputError(f"{str(folder)!r} is not the folder of a node: it has no node.toml.")


def node_settings(place: Path, **given: Any) -> NodeSettings:
    """What node.toml says; what is given wins."""
    values = _read(place / "node.toml", NodeSettings)
    made = NodeSettings(**(values | {key: value for key, value in given.items() if value is not None}))
    if made.data is None:
        raise InputError(f"node {made.name} has no data: name them in {str(place / 'node.toml')!r}, or with --data.")
    return made


def node_state(place: Path) -> Path:
    """The folder where a node keeps its clients' states and models."""
    return place / NodeSettings(**_read(place / "node.toml", NodeSettings)).state


def private(folder: Path) -> Path:
    """A folder that nobody else may look into; it is made, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(folder, error) from None
    if folder.stat().st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError:  # it is somebody else's
            log.warning("others may look into %s: its rights cannot be changed", folder)
    return folder


def _read(path: Path, kind: type) -> dict[str, Any]:
    """A TOML file whose keys are the fields of a class."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} must be a TOML file, which it is not: {error}.") from None
    known = {one.name: one for one in fields(kind)}
    for key in values:
        if key not in known:
            raise unknown(f"key in {str(path)!r}", key, known)
    for key, one in known.items():
        if one.default is MISSING and key not in values:
            raise InputError(f"{str(path)!r} must say {key} = ..., as deploy init wrote it, but does not.")
    return {key: _fitting(path, key, value, known[key].default) for key, value in values.items()}


def _fitting(path: Path, key: str, value: Any, default: Any) -> Any:
    kinds: Mapping[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
    if isinstance(default, tuple):
        fits = isinstance(value, list) and len(value) == 3 and all(isinstance(one, int | float) for one in value)
        value = tuple(value) if fits else value
    else:
        wanted = kinds.get(type(default), (str,))
        fits = isinstance(value, wanted) and (isinstance(default, bool) or not isinstance(value, bool))
    if not fits:
        raise InputError(f"{key} in {str(path)!r} cannot be {value!r}.")
    return value
