"""The folder of a deployment: what `bespoke deploy init` writes, and where everything is found again.

README.md                 what to do on which machine
authority/ca.key          vouches for the server; to be kept offline
server/server.toml        the server's settings
server/app/               the Flower app
server/certificates/      ca.crt, server.crt, server.key
server/keys/NAME.pub      the nodes that are let in
server/let-in/NAME.pub    the keys with which they were, the first time
server/runs/NAME/         a run: config.toml, status.json, checkpoints, result
nodes/NAME/node.toml      a node's settings: copy its folder to that machine
nodes/NAME/ca.crt, node.key, node.pub
"""

import ipaddress
import logging
import math
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.files import unwritten, write_text
from bespokefl.engines.flower.names import check_run
from bespokefl.engines.flower.patience import Patience

log = logging.getLogger("bespokefl")

PORT = 9092
NODE_ID = "node-id"  # the file beside a node's runs in which it keeps its number
PLACE = "BESPOKE_DEPLOYMENT"  # the environment variable that names the deployment's folder to Flower's apps
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"{LABEL}(?:\.{LABEL})*")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # all networks, and how this machine is reached then
APP = '''"""The Flower app of a deployment: both halves are Bespoke's own, configured on each machine."""

from bespokefl.experiments.deployment.apps import client, server

__all__ = ["client", "server"]
'''
PROJECT = """[project]
name = "bespoke-deployment"
version = "1.0.0"
description = "Personalized federated learning with Bespoke"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bespoke"

[tool.flwr.app.components]
serverapp = "bespoke_app:server"
clientapp = "bespoke_app:client"

[tool.flwr.app.config]
run = ""
"""
SERVER = """# The server of this deployment. Lines that begin with # are defaults.

address = {address}  # by which nodes reach it; its certificate is for this name
listen = {listen}  # the address to listen on: 0.0.0.0 for all, 127.0.0.1 for this machine only
insecure = {insecure}  # no TLS and no keys: only for 127.0.0.1

# minimum = 1      # clients that must have answered before a round may end
# timeout = 600    # seconds for the answers of a round; who is later does not count in it
# give_up = 3600   # seconds to wait for the minimum before the run stops (it can be resumed)
# gather = 600     # seconds to wait for all nodes before a run begins with those that are there
# resend = 90      # seconds until a request without an answer is sent again
"""
NODE = """# Node {name}. Lines that begin with # are defaults. The server cannot change what is named here.

name = {quoted}
server = {address}

# The data: a name, an .npz or .csv file, a folder, or module:function, which returns a Dataset or Clients.
# May be given with --data instead.
# data = "records.npz"

# One client for each id in the column "client" of the data; without one, this node is a single client.
# label = "diagnosis"      # for tables: the column to predict
# client = "ward"          # for tables: the column that names the clients
# prefix = false           # put the node's name before its clients', where several nodes have the same
# fractions = [0.6, 0.2, 0.2]   # for training, validation and test
# seed = 0                 # of that division

# state = "state"          # the folder for clients' states and models, kept from run to run
# device = "cpu"
# model = "module:function"  # a model of one's own that the server may ask for by this name
# noise = 0.0              # the least noise on uploads that this node insists on; a run with less is refused
"""


@dataclass(frozen=True)
class ServerSettings:
    address: str
    listen: str = "127.0.0.1"
    insecure: bool = False
    minimum: int = Patience.minimum
    timeout: float = Patience.timeout
    give_up: float = Patience.give_up
    gather: float = Patience.gather
    resend: float = Patience.resend

    def __post_init__(self) -> None:
        port_of(self.address)
        if not _is_host(f"[{self.listen}]" if ":" in self.listen else self.listen):
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
    def patience(self) -> Patience:
        return Patience(
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

    def changed_keys(self) -> list[str]:
        """Nodes that have another public key now than the SuperLink, which keeps the first, has let them in with."""
        noted, changed = self.server / "let-in", []
        if not (self.server / "flower.db").exists():
            shutil.rmtree(noted, ignore_errors=True)
        for name, key in self.nodes.items():
            first, text = noted / key.name, key.read_text(encoding="utf-8", errors="replace")
            if not first.exists():
                write_text(first, text)
            elif first.read_text(encoding="utf-8") != text:
                changed.append(name)
        return changed

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


def init(folder: Path, nodes: Sequence[str], address: str, *, insecure: bool = False, days: int = 365) -> Deployment:
    """Write all that a deployment needs; the folder must be new or empty, and is so again if that fails."""
    _check(folder, nodes, address, insecure, days)
    new = not folder.exists()
    try:
        _write(folder, nodes, address, insecure, days)
    except BaseException as error:
        for one in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        if new and folder.is_dir():
            folder.rmdir()
        if isinstance(error, OSError):
            raise unwritten(folder, error) from None
        raise
    return Deployment.at(folder)


def _write(folder: Path, nodes: Sequence[str], address: str, insecure: bool, days: int) -> None:
    from bespokefl.experiments.deployment import keys

    server, authority = folder / "server", folder / "authority"
    private(server)
    for place in (server / "app", server / "keys", server / "runs", *(folder / "nodes" / name for name in nodes)):
        place.mkdir(parents=True, exist_ok=True)
    listen = _listen(host_of(address))
    settings = SERVER.format(address=f'"{address}"', listen=f'"{listen}"', insecure=str(insecure).lower())
    (server / "server.toml").write_text(settings, encoding="utf-8")
    (server / "app" / "bespoke_app.py").write_text(APP, encoding="utf-8")
    (server / "app" / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    if not insecure:
        private(authority)
        certificates = server / "certificates"
        certificates.mkdir()
        keys.write_authority(authority / "ca.key", certificates / "ca.crt")
        _certificate(Deployment.at(folder), days)
    for name in nodes:
        place = folder / "nodes" / name
        private(place / "state")
        text = NODE.format(name=name, quoted=f'"{name}"', address=f'"{address}"')
        (place / "node.toml").write_text(text, encoding="utf-8")
        if not insecure:
            (place / "ca.crt").write_bytes((server / "certificates" / "ca.crt").read_bytes())
            keys.write_pair(place / "node.key", place / "node.pub")
            (server / "keys" / f"{name}.pub").write_bytes((place / "node.pub").read_bytes())
    (folder / "README.md").write_text(_readme(folder, nodes, address, insecure), encoding="utf-8")


def renew(folder: Path, days: int = 365) -> None:
    """A new certificate for the server, from the same authority: nothing changes at the nodes."""
    deployment = Deployment.at(folder)
    _check_days(days)
    if not (folder / "authority" / "ca.key").is_file():
        raise InputError(f"the authority's key is not in {str(folder / 'authority')!r}: put it there for a moment.")
    _certificate(deployment, days)


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


def _listen(host: str) -> str:
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def _certificate(deployment: Deployment, days: int) -> None:
    from bespokefl.experiments.deployment import keys

    certificates = deployment.server / "certificates"
    hosts = [host_of(deployment.settings.address), deployment.host, "localhost", "127.0.0.1", "::1"]
    signer = (deployment.root / "authority" / "ca.key", certificates / "ca.crt")
    pair = certificates / "server.key", certificates / "server.crt"
    keys.write_certificate(signer, *pair, list(dict.fromkeys(hosts)), days)


def _check(folder: Path, nodes: Sequence[str], address: str, insecure: bool, days: int) -> None:
    from bespokefl.experiments.folder import check_above

    if not nodes:
        raise InputError("a deployment needs nodes: name each, as in --node hospital-a --node hospital-b.")
    for name in nodes:
        if not NAME.fullmatch(name):
            raise InputError(f"a node's name must be of letters, digits, dots, dashes and underscores, got {name!r}.")
    if len(set(nodes)) < len(nodes):
        raise InputError(f"every node needs a name of its own, got {', '.join(nodes)}.")
    if insecure and not is_loopback(host_of(address)):
        raise InputError(f"--insecure is for 127.0.0.1 only, got {address!r}: leave it out, TLS needs nothing else.")
    _check_days(days)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} is there already; give a new folder.")
    check_above(folder)


def _check_days(days: int) -> None:
    from bespokefl.experiments.deployment.keys import LONGEST

    if not 1 <= days <= LONGEST:
        raise InputError(f"the certificate must be valid for 1 to {LONGEST} days, got {days}.")


def port_of(address: str) -> int:
    return _parts(address)[1]


def host_of(address: str) -> str:
    """Without the brackets that an IPv6 address has."""
    return _parts(address)[0].strip("[]")


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InputError(
            f"an address must be host:port, as in server.example.org:{PORT} or 192.0.2.7:{PORT}, got {address!r}."
        )
    return host, int(port)


def _is_host(host: str) -> bool:
    """A name of letters, digits, dashes and dots, an IPv4 address, or an IPv6 address in brackets."""
    try:
        if host.startswith("[") and host.endswith("]"):
            return ipaddress.IPv6Address(host[1:-1]).scope_id is None
        if re.fullmatch(r"[0-9.]+", host):
            return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False
    return len(host) <= 253 and HOST.fullmatch(host) is not None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


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


def _readme(folder: Path, nodes: Sequence[str], address: str, insecure: bool) -> str:
    name = folder.resolve().name
    lines = [
        f"# Deployment {name}",
        "",
        'On every machine, first: `pip install "bespokefl[flower]"`, the same version everywhere.',
        "",
        f"## The server, {address}",
        "",
        f"Copy `{name}/` there, without `nodes/`"
        + ("." if insecure else " and without `authority/`, which you keep offline.")
        + " Then, and for as long as there are runs:",
        "",
        f"    bespoke deploy server {shlex.quote(name)}",
        "",
    ]
    for node in nodes:
        lines += [
            f"## Node {node}",
            "",
            f"Copy `{name}/nodes/{node}/` there, by a way that nobody else can read: it has the node's key. Name its",
            "data in `node.toml`, or here:",
            "",
            f"    bespoke deploy node {shlex.quote(node)} --data records.npz",
            "",
        ]
    lines += [
        "## A run",
        "",
        "On the server's machine:",
        "",
        f"    bespoke deploy start {shlex.quote(name)} --method pfedvem --rounds 50",
        f"    bespoke deploy status {shlex.quote(name)}",
        f"    bespoke deploy fetch {shlex.quote(name)} --out runs/pfedvem",
        "",
        "Every client's own model stays at its node, in `state/RUN/personal.safetensors`. To use it there:",
        "",
        f"    bespoke deploy predict {shlex.quote(nodes[0])} --client CLIENT --data new.csv",
        "",
    ]
    return "\n".join(lines)
