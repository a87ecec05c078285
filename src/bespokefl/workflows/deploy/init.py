"""Writes the directory of a deployment: settings, certificates, keys, the Flower app and a README."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from bespokefl.core.errors import InputError
from bespokefl.core.files import unwritten, write_text
from bespokefl.workflows.deploy import certificates
from bespokefl.workflows.deploy.addresses import host_of, is_loopback
from bespokefl.workflows.deploy.layout import Deployment, make_private
from bespokefl.workflows.results.run_directory import check_above

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
APP = '''"""The Flower app of this deployment. The server writes this file when it starts."""

from bespokefl.engines.transports.flower.apps import client_app, server_app
from bespokefl.workflows.deploy.server.run import serve

client = client_app
server = server_app(serve)
'''
APP_PROJECT = """[project]
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
SERVER_TOML = """# The server of this deployment. Lines that begin with # show defaults.

address = "{address}"  # at which nodes reach the server; its certificate is for this name
listen = "{listen}"  # the address to listen on: 0.0.0.0 for all networks, 127.0.0.1 for this machine only
insecure = {insecure}  # no TLS and no keys: only for 127.0.0.1

# minimum = 1      # clients that must have replied before a round may end
# timeout = 600    # seconds for the replies of a round; later ones do not count in it
# give_up = 3600   # seconds to wait for the minimum before the run stops (it can be resumed)
# gather = 600     # seconds to wait for all nodes before a run starts with those that are connected
# resend = 90      # seconds until a request without a reply is sent again
"""
NODE_TOML = """# Node {name}. Lines that begin with # show defaults. The server cannot change these settings.

name = "{name}"
server = "{address}"

# The data: a name, an .npz or .csv file, a directory, or module:function, which returns a Dataset or Clients.
# The option --data can name them instead.
# data = "records.npz"

# One client for each id in the column "client" of the data; without one, this node is a single client.
# label = "diagnosis"      # for tables: the column to predict
# client = "ward"          # for tables: the column that names the clients
# prefix = false           # put the node's name before its clients' names, if several nodes have the same ones
# fractions = [0.6, 0.2, 0.2]   # for training, validation and test
# seed = 0                 # of that division

# state = "state"          # the directory of clients' states and models, which are kept from run to run
# device = "cpu"
# model = "module:function"  # your own model, which the server may then request by this name
# noise = 0.0              # the least noise on uploads that this node requires; it rejects runs with less
"""
README_SERVER = """# Deployment {name}

On every machine, first: `pip install "bespokefl[flower]"`, the same version everywhere.

## The server, {address}

Copy `{name}/` there, without `nodes/`{offline}. Then, and for as long as there are runs:

    bespoke deploy server {quoted}
"""
README_NODE = """
## Node {node}

Copy `{name}/nodes/{node}/` there over a secure channel: it has the node's key. Name its data in `node.toml`, or here:

    bespoke deploy node {quoted} --data records.npz
"""
README_RUN = """
## A run

On the server's machine:

    bespoke deploy start {quoted} --method pfedvem --rounds 50
    bespoke deploy status {quoted}
    bespoke deploy fetch {quoted} --out runs/pfedvem

Each client's own model stays at its node, in `state/RUN/personal.safetensors`. To use it there:

    bespoke deploy predict {first} --client CLIENT --data new.csv
"""


def init(directory: Path, nodes: Sequence[str], address: str, *, insecure: bool = False, days: int = 365) -> Deployment:
    """Write a new deployment. The directory must be new or empty; after an error it is so again."""
    _check(directory, nodes, address, insecure, days)
    new = not directory.exists()
    try:
        _write_server(directory, address, insecure, days)
        for name in nodes:
            _write_node(directory, name, address, insecure)
        (directory / "README.md").write_text(_readme(directory, nodes, address, insecure), encoding="utf-8")
    except BaseException as error:
        for path in directory.iterdir() if directory.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if new and directory.is_dir():
            directory.rmdir()
        if isinstance(error, OSError):
            raise unwritten(directory, error) from None
        raise
    return Deployment.at(directory)


def renew(directory: Path, days: int = 365) -> None:
    """Write a new certificate for the server, from the same authority: nothing changes at the nodes."""
    deployment = Deployment.at(directory)
    _check_days(days)
    authority = directory / "authority"
    if not (authority / "ca.key").is_file():
        raise InputError(f"the authority's key is not in {str(authority)!r}: copy it there while you renew.")
    _write_certificate(deployment, days)


def write_app(directory: Path) -> None:
    """Write the Flower app; the server does so when it starts, as earlier versions wrote another one."""
    write_text(directory / "bespoke_app.py", APP)
    write_text(directory / "pyproject.toml", APP_PROJECT)


def _write_server(directory: Path, address: str, insecure: bool, days: int) -> None:
    server = directory / "server"
    make_private(server)
    for name in ("keys", "runs"):
        (server / name).mkdir()
    write_app(server / "app")
    settings = SERVER_TOML.format(address=address, listen=_listen(host_of(address)), insecure=str(insecure).lower())
    (server / "server.toml").write_text(settings, encoding="utf-8")
    if not insecure:
        make_private(directory / "authority")
        (server / "certificates").mkdir()
        certificates.write_authority(directory / "authority" / "ca.key", server / "certificates" / "ca.crt")
        _write_certificate(Deployment.at(directory), days)


def _write_node(directory: Path, name: str, address: str, insecure: bool) -> None:
    node, server = directory / "nodes" / name, directory / "server"
    make_private(node / "state")
    (node / "node.toml").write_text(NODE_TOML.format(name=name, address=address), encoding="utf-8")
    if not insecure:
        shutil.copyfile(server / "certificates" / "ca.crt", node / "ca.crt")
        certificates.write_key_pair(node / "node.key", node / "node.pub")
        shutil.copyfile(node / "node.pub", server / "keys" / f"{name}.pub")


def _write_certificate(deployment: Deployment, days: int) -> None:
    folder = deployment.server / "certificates"
    hosts = [host_of(deployment.settings.address), deployment.local_host, "localhost", "127.0.0.1", "::1"]
    authority = (deployment.root / "authority" / "ca.key", folder / "ca.crt")
    pair = folder / "server.key", folder / "server.crt"
    certificates.write_certificate(authority, *pair, list(dict.fromkeys(hosts)), days)


def _listen(host: str) -> str:
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def _check(directory: Path, nodes: Sequence[str], address: str, insecure: bool, days: int) -> None:
    if not nodes:
        raise InputError("a deployment needs nodes: name each, as in --node hospital-a --node hospital-b.")
    for name in nodes:
        if not NODE_NAME.fullmatch(name):
            raise InputError(
                f"a node's name must consist of letters, digits, dots, dashes and underscores, got {name!r}."
            )
    if len(set(nodes)) < len(nodes):
        raise InputError(f"each node needs a name of its own, got {', '.join(nodes)}.")
    if insecure and not is_loopback(host_of(address)):
        raise InputError(f"--insecure is for 127.0.0.1 only, got {address!r}: leave it out, TLS needs nothing else.")
    _check_days(days)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{str(directory)!r} already exists; give a new directory.")
    check_above(directory)


def _check_days(days: int) -> None:
    if not 1 <= days <= certificates.MAX_DAYS:
        raise InputError(f"the certificate must be valid for 1 to {certificates.MAX_DAYS} days, got {days}.")


def _readme(directory: Path, nodes: Sequence[str], address: str, insecure: bool) -> str:
    name = directory.resolve().name
    quoted = shlex.quote(name)
    offline = "" if insecure else " and without `authority/`, which you keep offline"
    parts = [README_SERVER.format(name=name, address=address, offline=offline, quoted=quoted)]
    parts += [README_NODE.format(name=name, node=node, quoted=shlex.quote(node)) for node in nodes]
    parts.append(README_RUN.format(quoted=quoted, first=shlex.quote(nodes[0])))
    return "".join(parts)
