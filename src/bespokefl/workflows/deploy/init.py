"""Writes the directory of a deployment: settings, certificates, keys, the Flower app and a README."""

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.system.files import unwritten, write_text
from bespokefl.engines.transports.flower.names import check_name
from bespokefl.workflows.deploy import certificates
from bespokefl.workflows.deploy.layout import Deployment, host_of, is_loopback, make_private
from bespokefl.workflows.results.run_directory import check_above

TEMPLATES = Path(__file__).with_name("templates")


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


def renew_key(directory: Path, node: str) -> Path:
    """Write a new key pair for a node, and return its directory: the server then rejects the node's former key."""
    deployment = Deployment.at(directory)
    public = deployment.node_keys.get(node)
    if public is None:
        raise unknown("node", node, deployment.node_keys)
    place = directory / "nodes" / check_name(node, "a node", longest=63)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            pair = Path(folder, "node.key"), Path(folder, "node.pub")
            certificates.write_key_pair(*pair)
            for file in pair:
                file.replace(place / file.name)
        shutil.copyfile(deployment.server / "certificates" / "ca.crt", place / "ca.crt")
        write_text(public, (place / "node.pub").read_text(encoding="utf-8"))
    except OSError as error:
        raise unwritten(place, error) from None
    return place


def write_app(directory: Path) -> None:
    """Write the Flower app; the server does so when it starts, as earlier versions wrote another one."""
    write_text(directory / "bespoke_app.py", _template("bespoke_app.py.txt"))
    write_text(directory / "pyproject.toml", _template("app_project.toml"))


def _write_server(directory: Path, address: str, insecure: bool, days: int) -> None:
    server = directory / "server"
    make_private(server)
    for name in ("keys", "runs"):
        (server / name).mkdir()
    write_app(server / "app")
    settings = _template("server.toml").format(
        address=address, listen=_listen(host_of(address)), insecure=str(insecure).lower()
    )
    (server / "server.toml").write_text(settings, encoding="utf-8")
    if not insecure:
        make_private(directory / "authority")
        (server / "certificates").mkdir()
        certificates.write_authority(directory / "authority" / "ca.key", server / "certificates" / "ca.crt")
        _write_certificate(Deployment.at(directory), days)


def _write_node(directory: Path, name: str, address: str, insecure: bool) -> None:
    node, server = directory / "nodes" / name, directory / "server"
    make_private(node / "state")
    (node / "node.toml").write_text(_template("node.toml").format(name=name, address=address), encoding="utf-8")
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


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _listen(host: str) -> str:
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return "::" if ":" in host else "0.0.0.0"


def _check(directory: Path, nodes: Sequence[str], address: str, insecure: bool, days: int) -> None:
    if not nodes:
        raise InputError("a deployment needs nodes: name each, as in --node hospital-a --node hospital-b.")
    for name in nodes:
        check_name(name, "a node", longest=63)
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
    parts = [_template("readme_server.md").format(name=name, address=address, offline=offline, quoted=quoted)]
    parts += [_template("readme_node.md").format(name=name, node=node, quoted=shlex.quote(node)) for node in nodes]
    parts.append(_template("readme_run.md").format(quoted=quoted, first=shlex.quote(nodes[0])))
    return "".join(parts)
