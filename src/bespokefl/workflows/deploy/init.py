"""What `bespoke deploy init` and `renew` write: configurations, certificates, keys, and a README for the rest."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from bespokefl.core.errors import InputError
from bespokefl.core.files import unwritten
from bespokefl.workflows.deploy import certificates as keys
from bespokefl.workflows.deploy.addresses import host_of, is_loopback
from bespokefl.workflows.deploy.layout import Deployment, private
from bespokefl.workflows.results.run_directory import check_above

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
APP = '''"""The Flower app of a deployment: both halves are Bespoke's own, configured on each machine."""

from bespokefl.workflows.deploy.flower_apps import client, server

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


def renew(folder: Path, days: int = 365) -> None:
    """A new certificate for the server, from the same authority: nothing changes at the nodes."""
    deployment = Deployment.at(folder)
    _check_days(days)
    if not (folder / "authority" / "ca.key").is_file():
        raise InputError(f"the authority's key is not in {str(folder / 'authority')!r}: put it there for a moment.")
    _certificate(deployment, days)


def _write(folder: Path, nodes: Sequence[str], address: str, insecure: bool, days: int) -> None:
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


def _certificate(deployment: Deployment, days: int) -> None:
    certificates = deployment.server / "certificates"
    hosts = [host_of(deployment.settings.address), deployment.host, "localhost", "127.0.0.1", "::1"]
    signer = (deployment.root / "authority" / "ca.key", certificates / "ca.crt")
    pair = certificates / "server.key", certificates / "server.crt"
    keys.write_certificate(signer, *pair, list(dict.fromkeys(hosts)), days)


def _listen(host: str) -> str:
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def _check(folder: Path, nodes: Sequence[str], address: str, insecure: bool, days: int) -> None:
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
    if not 1 <= days <= keys.LONGEST:
        raise InputError(f"the certificate must be valid for 1 to {keys.LONGEST} days, got {days}.")


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
