"""The directory of a deployment, as `bespoke deploy init` writes it, and its settings.

README.md                 what to do on which machine
authority/ca.key          signs the server's certificate; to be kept offline
server/server.toml        the server's settings
server/app/               the Flower app
server/certificates/      ca.crt, server.crt, server.key
server/secret             signs the requests of the server's own processes and of bespoke deploy
server/keys/NAME.pub      the public keys of the nodes that may connect
server/runs/NAME/         a run: config.toml, status.json, checkpoints, result
nodes/NAME/node.toml      a node's settings: copy its directory to that machine
nodes/NAME/ca.crt, node.key, node.pub
"""

import ipaddress
import logging
import math
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from bespokefl.core.errors import NODE_FILE, InputError, settings_written_in, unknown
from bespokefl.core.system.files import unwritten
from bespokefl.core.user_input.spec import convert
from bespokefl.engines.transports.flower.names import check_name
from bespokefl.engines.transports.flower.node.score_policy import NONE, ScorePolicy
from bespokefl.engines.transports.flower.timeouts import Timeouts
from bespokefl.workflows.run import settings as configs

log = logging.getLogger("bespokefl")

NODE_ID = "node-id"  # a file beside the directories of runs at a node, with Flower's id of the node
DEPLOYMENT_VARIABLE = "BESPOKE_DEPLOYMENT"  # the environment variable with the directory, for the server app
DEFAULT_PORT = 9092
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"{LABEL}(?:\.{LABEL})*")
TABLE_OPTIONS = tuple(one for one in configs.RunSettings.marked(configs.Mark.TABLE) if one != "text")  # of node.toml
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # addresses for all networks, and the local address to use then


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Timeouts):
    """The keys of server.toml."""

    address: str
    listen: str = "127.0.0.1"
    insecure: bool = False
    strict: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _parse(self.address)
        if not _is_host(f"[{self.listen}]" if ":" in self.listen else self.listen):
            raise InputError(f"listen in server.toml must be an address such as 0.0.0.0, got {self.listen!r}.")

    @property
    def port(self) -> int:
        """The port of the address."""
        return _parse(self.address)[1]


@dataclass(frozen=True)
class NodeSettings:
    """The keys of node.toml."""

    name: str
    server: str
    data: str | None = None
    label: str | None = None
    client: str | None = None
    drop: str = ""
    task: str | None = None
    missing: str | None = None  # None: as each run says
    missing_values: str = ""
    as_number: str = ""
    dates: bool = False
    prefix: bool = False
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    seed: int = 0
    state: str = "state"
    device: str = "cpu"
    model: str | None = None
    modules: tuple[str, ...] = ()
    noise: float = 0.0
    scores: str | None = None  # None: as `score_policy` says
    score_budget: int = ScorePolicy.score_budget
    score_digits: int = ScorePolicy.score_digits
    smallest_scored: int = ScorePolicy.smallest_scored

    def __post_init__(self) -> None:
        _parse(self.server)
        self.score_policy  # noqa: B018  # checks these settings
        if isinstance(self.modules, str) or not all(isinstance(one, str) for one in self.modules):
            raise InputError(f'modules in node.toml must be a list such as ["mymethods"], got {self.modules!r}.')
        if not (self.noise >= 0 and math.isfinite(self.noise)):
            raise InputError(f"noise in node.toml must be a number >= 0, got {self.noise}.")
        for one in fields(configs.RunSettings):
            if one.name in TABLE_OPTIONS and getattr(self, one.name) is not None:
                configs.checked(one, getattr(self, one.name))

    @property
    def score_policy(self) -> ScorePolicy:
        """Which scores the node gives away. A node that insists on noise gives none, unless it says which."""
        chosen = self.scores or (NONE if self.noise else ScorePolicy.scores)
        return ScorePolicy(chosen, self.score_budget, self.score_digits, self.smallest_scored)


@dataclass(frozen=True)
class Deployment:
    """The directory of a deployment on the server's machine."""

    root: Path

    @classmethod
    def at(cls, directory: Path) -> "Deployment":
        """Return the deployment in a directory; raise InputError if there is none."""
        if not (directory / "server" / "server.toml").is_file():
            raise InputError(
                f"{str(directory)!r} is not the directory of a deployment: it has no server/server.toml; write one "
                "with bespoke deploy init."
            )
        return cls(directory.resolve())

    @property
    def server(self) -> Path:
        """The server's directory."""
        return self.root / "server"

    @property
    def settings(self) -> ServerSettings:
        """The server's settings, read from server.toml."""
        return ServerSettings(**_read(self.server / "server.toml", ServerSettings))

    @property
    def root_certificate(self) -> Path | None:
        """The authority's certificate; None without TLS."""
        return None if self.settings.insecure else self.server / "certificates" / "ca.crt"

    @property
    def secret(self) -> Path:
        """The file with the secret of the server's own processes; a server that starts creates it if it is missing."""
        return self.server / "secret"

    @property
    def local_host(self) -> str:
        """The host at which processes on the server's machine reach the server."""
        return WILDCARDS.get(self.settings.listen, self.settings.listen)

    @property
    def local_address(self) -> str:
        """The server's address on this machine."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"{host}:{self.settings.port}"

    @property
    def node_keys(self) -> dict[str, Path]:
        """The public keys of the nodes that may connect."""
        return {path.stem: path for path in sorted((self.server / "keys").glob("*.pub"))}

    def run_directory(self, name: str) -> Path:
        """Return the directory of a run; raise InputError if the name is invalid."""
        if name == NODE_ID:
            raise InputError(f"a run cannot be named {name!r}: nodes have a file of that name; choose another.")
        return self.server / "runs" / check_name(name, "a run")


def find_node(directory: Path, name: str | None) -> Path:
    """The directory of a node, given itself or the directory of its deployment."""
    for candidate in (directory, *([directory / "nodes" / name] if name else [])):
        if (candidate / "node.toml").is_file():
            return candidate.resolve()
    nodes = sorted(path.parent.name for path in directory.glob("nodes/*/node.toml"))
    if nodes and name:
        raise unknown("node", name, nodes)
    if nodes:
        raise InputError(f"{str(directory)!r} has several nodes: name one, as in --name {nodes[0]}.")
    raise InputError(f"{str(directory)!r} is not the directory of a node: it has no node.toml.")


def read_node_settings(directory: Path, data: str | None = None) -> NodeSettings:
    """The settings in node.toml; `data` replaces the data that are named there."""
    values = _read(directory / "node.toml", NodeSettings)
    with settings_written_in(NODE_FILE):
        return NodeSettings(**(values if data is None else values | {"data": data}))


def host_of(address: str) -> str:
    """The host of an address host:port, without the brackets of an IPv6 address."""
    return _parse(address)[0].strip("[]")


def _is_host(host: str) -> bool:
    """Whether this is a host name, an IPv4 address, or an IPv6 address in brackets."""
    try:
        if host.startswith("[") and host.endswith("]"):
            return ipaddress.IPv6Address(host[1:-1]).scope_id is None
        if re.fullmatch(r"[0-9.]+", host):
            return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False
    return len(host) <= 253 and HOST.fullmatch(host) is not None


def is_loopback(host: str) -> bool:
    """Whether a host name or address stands for this machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InputError(
            f"an address must be host:port, as in server.example.org:{DEFAULT_PORT} or 192.0.2.7:{DEFAULT_PORT}, got "
            f"{address!r}."
        )
    return host, int(port)


def make_private(directory: Path) -> None:
    """Create a directory if it does not exist, and make it accessible to its owner only."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(directory, error) from None
    if directory.stat().st_mode & 0o077:
        try:
            directory.chmod(0o700)
        except OSError:  # another user owns it
            log.warning("other users may be able to read %s: its permissions cannot be changed", directory)


def _read(path: Path, kind: type) -> dict[str, Any]:
    """Read a TOML file whose keys are the fields of a class."""
    values = configs.read(path)
    known = {field.name: field for field in fields(kind) if field.name != "poll"}
    for key in values:
        if key not in known:
            raise unknown(f"key in {str(path)!r}", key, known)
    for key, field in known.items():
        if field.default is MISSING and key not in values:
            raise InputError(f"{str(path)!r} must have {key} = ..., as deploy init wrote it.")
    return {key: convert(f"{key} in {str(path)!r}", value, known[key].type) for key, value in values.items()}
