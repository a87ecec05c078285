"""What `bespoke deploy init` writes, which requests the server accepts, and how a node loads its data."""

import asyncio
import logging
import re
import socket
import ssl
import stat
import threading
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography import x509

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.data import load
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower.messenger import NodeInfo
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.engines.transports.flower.services import supernode
from bespokefl.engines.transports.flower.services.superlink import LocalAdministration
from bespokefl.workflows.deploy import certificates as keys
from bespokefl.workflows.deploy import demo, layout, runs
from bespokefl.workflows.deploy import init as initialization
from bespokefl.workflows.deploy import node as nodes
from bespokefl.workflows.deploy.layout import Deployment, NodeSettings
from bespokefl.workflows.deploy.node import LocalHost
from bespokefl.workflows.deploy.server import supervisor
from bespokefl.workflows.deploy.server.run import agree_on_features
from bespokefl.workflows.run.settings import RunSettings

NODES = ["hospital-a", "hospital-b"]


def loopbacks() -> dict[str, socket.AddressFamily]:
    """Those that this machine has; not all have IPv6."""
    found = {"127.0.0.1": socket.AF_INET}
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        found["::1"] = socket.AF_INET6
    return found


LOOPBACKS = loopbacks()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return initialization.init(tmp_path / "dir", NODES, "server.example.org:9092")


def test_everything_is_written(deployment: Deployment) -> None:
    root = deployment.root
    assert list(deployment.node_keys) == NODES and deployment.settings.listen == "0.0.0.0"
    for name in NODES:
        own = root / "nodes" / name
        assert tomllib.loads((own / "node.toml").read_text()) == {"name": name, "server": "server.example.org:9092"}
        supernode.read_private_key(own / "node.key")
        assert (own / "node.pub").read_bytes() == deployment.node_keys[name].read_bytes()
        assert f"bespoke deploy node {name}" in (root / "README.md").read_text()
    for secret in (root / "authority" / "ca.key", root / "server" / "certificates" / "server.key", own / "node.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert not any("PRIVATE" in path.read_text() for path in (root / "server").rglob("*.pub"))


def test_the_certificate_is_the_authority_s_and_for_this_address(deployment: Deployment) -> None:
    certificates = deployment.server / "certificates"
    found = x509.load_pem_x509_certificate((certificates / "server.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "server.example.org" in names.get_values_for_type(x509.DNSName)
    found.verify_directly_issued_by(x509.load_pem_x509_certificate((certificates / "ca.crt").read_bytes()))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    keys.check_certificate(certificates / "server.crt", "")


def test_an_expired_certificate_is_rejected_and_can_be_renewed(deployment: Deployment) -> None:
    certificates = deployment.server / "certificates"
    for name in ("server.crt", "server.key"):
        (certificates / name).unlink()
    authority = (deployment.root / "authority" / "ca.key", certificates / "ca.crt")
    keys.write_certificate(authority, certificates / "server.key", certificates / "server.crt", ["a"], days=0)
    with pytest.raises(InputError, match=r"certificate expired on \d{4}-\d\d-\d\d; renew it: bespoke deploy renew"):
        supervisor.run_server(deployment, threading.Event())
    initialization.renew(deployment.root)
    keys.check_certificate(certificates / "server.crt", "")


@pytest.mark.parametrize(
    ("nodes", "address", "insecure", "sentence"),
    [
        ([], "a:1", False, "needs nodes"),
        (["a/b"], "a:1", False, "a node's name must consist of"),
        (["a", "a"], "a:1", False, "each node needs a name of its own"),
        (["a"], "nowhere", False, "an address must be host:port"),
        (["a"], "a:99999", False, "an address must be host:port"),
        (["a"], "example.org:9092", True, "--insecure is for 127.0.0.1 only"),
    ],
)
def test_init_rejects_invalid_arguments(
    nodes: list[str], address: str, insecure: bool, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        initialization.init(tmp_path / "dir", nodes, address, insecure=insecure)
    assert not (tmp_path / "dir").exists()


def test_init_does_not_change_an_existing_directory(deployment: Deployment) -> None:
    with pytest.raises(InputError, match="already exists"):
        initialization.init(deployment.root, NODES, "a:1")


@pytest.mark.parametrize("host", LOOPBACKS)
def test_a_port_in_use(host: str, tmp_path: Path) -> None:
    with socket.socket(LOOPBACKS[host]) as taken:
        port = demo.free_port()
        taken.bind((host, port))
        taken.listen()
        made = initialization.init(tmp_path / "dir", ["a"], f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        with pytest.raises(InputError, match=f"cannot listen on {re.escape(host)}:{port}: .* in use"):
            supervisor.run_server(made, threading.Event())
    supervisor._check_server(made, made.settings)


def test_a_node_without_data_or_with_wrong_settings(deployment: Deployment) -> None:
    own = deployment.root / "nodes" / "hospital-a"
    with pytest.raises(InputError, match="node hospital-a has no data: name them in"):
        LocalHost(layout.read_node_settings(own), own).about()
    assert layout.read_node_settings(own, data="records.npz").data == "records.npz"
    (own / "node.toml").write_text('name = "a"\nserver = "b:1"\ndatta = "x"\n')
    with pytest.raises(InputError, match="did you mean 'data'"):
        layout.read_node_settings(own)
    with pytest.raises(InputError, match=r"has several nodes: name one"):
        layout.find_node(deployment.root, None)
    with pytest.raises(InputError, match="unknown node 'hospital-x'"):
        layout.find_node(deployment.root, "hospital-x")


def test_only_this_machine_may_use_routes_of_administrators() -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def ask(path: str, client: str, server: str = "0.0.0.0") -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "path": path, "client": (client, 1), "server": (server, 9092)}
        await LocalAdministration(app)(scope, None, send)
        return sent

    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/v1/fleetX"):
        assert asyncio.run(ask(path, "192.0.2.7"))[0]["status"] == 403
        assert not asyncio.run(ask(path, "127.0.0.1"))
    assert reached == ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/v1/fleetX"]
    for client, server, may in (
        ("192.0.2.2", "192.0.2.2", True),  # it listens on an address of its own, and asks itself
        ("192.0.2.3", "192.0.2.2", False),
        ("2001:db8::7", "2001:DB8:0::7", True),
        ("2001:db8::8", "2001:db8::7", False),
        ("192.0.2.2", "server.sock", False),
    ):
        assert bool(asyncio.run(ask("/v1/control/start-run", client, server))) is not may
    assert not asyncio.run(ask("/v1/fleet/pull-messages", "192.0.2.7"))


# -- a node's data


def hosts(tmp_path: Path) -> dict[str, LocalHost]:
    made = initialization.init(tmp_path / "dir", NODES, "127.0.0.1:1")
    clients = load("digits").split("dirichlet(alpha=0.4)", clients=3, seed=0)
    demo.distribute(clients, made.root, {"hospital-a": 2, "hospital-b": 1})
    places = {name: made.root / "nodes" / name for name in NODES}
    return {name: LocalHost(layout.read_node_settings(own), own) for name, own in places.items()}


def recipe(**changes: Any) -> dict[str, Any]:
    from bespokefl.data.preprocessing.transform import Preparation
    from bespokefl.data.tables.features import Features

    preparation = Preparation(Features.of_arrays((1, 8, 8))).to_json()
    given = {"method": "ditto", "hyper": {"prox_weight": 0.5}, "model": "mlp", "head": None, "loss": "cross_entropy"}
    return given | {"precision": "float32", "labels": [str(d) for d in range(10)], "preparation": preparation} | changes


def test_clients_are_those_of_the_column(tmp_path: Path) -> None:
    host = hosts(tmp_path)["hospital-a"]
    assert host.about()["clients"].keys() == {"0", "1"}
    prefixed = LocalHost(replace(host.settings, prefix=True), host.directory)
    assert prefixed.about()["clients"].keys() == {"hospital-a/0", "hospital-a/1"}
    np.savez(tmp_path / "alone.npz", x=np.eye(20), y=np.arange(20) % 2)
    alone = LocalHost(NodeSettings("clinic", "a:1", data=str(tmp_path / "alone.npz")), tmp_path)
    assert alone.about()["clients"].keys() == {"clinic"}


@pytest.mark.parametrize("written", ["[0.5, 0.5]", "0.6", '["a", "b", "c"]'])
def test_fractions_that_are_not_three_numbers(written: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "alone.npz", x=np.eye(20), y=np.arange(20) % 2)
    (tmp_path / "node.toml").write_text(f'name = "a"\nserver = "b:1"\ndata = "alone.npz"\nfractions = {written}\n')
    with pytest.raises(InputError, match="fractions must be three numbers"):
        LocalHost(layout.read_node_settings(tmp_path), tmp_path).about()


def test_the_server_cannot_name_code_that_the_node_has_not_agreed_to(tmp_path: Path) -> None:
    host = hosts(tmp_path)["hospital-a"]
    plan = RunPlan.of("run", ("0", "1", "2"), None, Settings(), recipe(model="tests.federations:mlp"))
    with pytest.raises(InputError, match=r'has not agreed to; to agree, write model = "tests\.federations:mlp"'):
        host.prepare(plan)


def test_classes_have_the_same_numbers_at_all_nodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    known = {}
    for name, labels in {"a": ["cold", "flu"], "b": ["ache", "flu"]}.items():
        y = np.array(labels)[rng.integers(2, size=30)]
        np.savez(tmp_path / f"{name}.npz", x=rng.standard_normal((30, 4)), y=y)
        known[name] = LocalHost(NodeSettings(name, "a:1", data=str(tmp_path / f"{name}.npz")), tmp_path)
    preparation, labels = agree_on_features(
        {name: NodeInfo(name, 1, host.about()) for name, host in known.items()}, RunSettings(method="local")
    )
    assert labels == ["ache", "cold", "flu"]
    host = known["b"]
    plan = RunPlan.of("run", ("a", "b"), None, Settings(), recipe(labels=labels, preparation=preparation.to_json()))
    side = host.prepare(plan).side
    expected = np.array([labels.index(("ache", "flu")[code]) for code in host.clients.y.tolist()])
    assert side.data.y.tolist() == expected.tolist() and side.task.layout.shapes[-1] == (3,)


def test_tables_are_scaled_by_the_sums_of_all_nodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made = {}
    for name, shift in {"a": 0.0, "b": 50.0}.items():
        age, ill = rng.normal(40 + shift, 9, 40), rng.integers(2, size=40)
        rows = "\n".join(f"{one:.3f},{'yes' if two else 'no'}" for one, two in zip(age, ill, strict=True))
        (tmp_path / f"{name}.csv").write_text("age,ill\n" + rows + "\n")
        settings = NodeSettings(name, "a:1", data=str(tmp_path / f"{name}.csv"), label="ill")
        made[name] = LocalHost(settings, tmp_path)
    known = {name: NodeInfo(name, 1, host.about()) for name, host in made.items()}
    preparation, labels = agree_on_features(known, RunSettings(method="local"))
    train = np.concatenate([h.clients.x.numpy()[h.clients.train.indices.numpy()] for h in made.values()])
    plan = RunPlan.of("run", ("a", "b"), None, Settings(), recipe(labels=labels, preparation=preparation.to_json()))
    for host in made.values():
        scaled = host.prepare(plan).side.data.x.numpy()
        np.testing.assert_allclose(
            scaled, (host.clients.x.numpy() - train.mean(0)) / train.std(0), rtol=1e-4, atol=1e-5
        )


def test_nodes_with_different_data_are_rejected(tmp_path: Path) -> None:
    known = {}
    for name, width in {"a": 4, "b": 5}.items():
        np.savez(tmp_path / f"{name}.npz", x=np.ones((30, width)), y=np.arange(30) % 2)
        host = LocalHost(NodeSettings(name, "a:1", data=str(tmp_path / f"{name}.npz")), tmp_path)
        known[name] = NodeInfo(name, 1, host.about())
    with pytest.raises(InputError, match=r"but b has examples of shape \(5,\) and a examples of shape \(4,\)"):
        agree_on_features(known, RunSettings(method="local"))


# -- a node that cannot start


def test_a_node_without_data_ends(deployment: Deployment) -> None:
    own = deployment.root / "nodes" / "hospital-a"
    with pytest.raises(InputError, match=r"nowhere\.npz"):
        nodes.run_node(own, layout.read_node_settings(own, data="nowhere.npz"), threading.Event(), lambda: None)
    with pytest.raises(InputError, match="has no data"):
        nodes.run_node(own, layout.read_node_settings(own), threading.Event(), lambda: None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ill,dose\n", "row"),
        ("ill,dose\n" + "".join(f"{at % 2},{at / 7 if at % 9 else '<0.1'}\n" for at in range(300)), "as_number"),
    ],
    ids=["empty", "texts among numbers"],
)
def test_a_node_whose_table_is_unusable_connects_and_says_why(
    text: str,
    reason: str,
    deployment: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(supernode, "serve_messages", lambda endpoint, node, *_: served.append(node))
    own = deployment.root / "nodes" / "hospital-a"
    (tmp_path / "table.csv").write_text(text)
    settings = replace(layout.read_node_settings(own, data=str(tmp_path / "table.csv")), label="ill")
    nodes.run_node(own, settings, threading.Event(), lambda: None)
    (warning,) = (one for one in caplog.messages if "cannot take part in runs" in one)
    assert reason in warning and "restart the node" in warning
    with pytest.raises(InputError, match=reason):
        served[0].host.about("mean")  # what a run asks first


def test_a_run_that_gathers_names_the_nodes_that_it_waits_for() -> None:
    assert runs.described({"state": "gathering", "waiting_for": ["b", "c"]}) == "gathering, waiting for b, c"
    assert runs.described({"state": "gathering", "waiting_for": []}) == "gathering"
    assert runs.described({"state": "running", "waiting_for": ["b"]}) == "running"


def test_a_node_logs_its_number_of_clients(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supernode, "serve_messages", lambda *_: None)
    own = deployment.root / "nodes" / "hospital-a"
    np.savez(tmp_path / "one.npz", x=np.eye(20), y=np.arange(20) % 2)
    np.savez(tmp_path / "two.npz", x=np.eye(40), y=np.arange(40) % 2, client=np.arange(40) // 20)
    with caplog.at_level(logging.INFO, "bespokefl"):
        for name in ("one", "two"):
            settings = layout.read_node_settings(own, data=str(tmp_path / f"{name}.npz"))
            nodes.run_node(own, settings, threading.Event(), lambda: None)
    assert [line for line in caplog.messages if "has" in line] == [
        "node hospital-a has 1 client",
        "node hospital-a has 2 clients",
    ]


@pytest.mark.parametrize(
    ("days", "authority", "reason"), [(0, "own", "expired"), (9, "another", "verify failed"), (9, "none", "TLS")]
)
def test_a_node_does_not_connect_to_a_server_that_it_cannot_trust(
    days: int, authority: str, reason: str, tmp_path: Path
) -> None:
    """An expired certificate, one of another authority, and a server without TLS."""
    made = initialization.init(tmp_path / "dir", ["a"], "127.0.0.1:1")
    other = initialization.init(tmp_path / "other", ["a"], "127.0.0.1:1")
    signer = other if authority == "another" else made
    pair = tmp_path / "server.key", tmp_path / "server.crt"
    signing = signer.root / "authority" / "ca.key", signer.server / "certificates" / "ca.crt"
    keys.write_certificate(signing, *pair, ["127.0.0.1"], days=days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair[1], pair[0])
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with suppress(OSError), connection:
                        if authority == "none":
                            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        else:
                            context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        own = made.root / "nodes" / "a"
        address = f"127.0.0.1:{server.getsockname()[1]}"
        endpoint = supernode.Endpoint(address, own / "ca.crt", own / "node.key", tmp_path / "node-id")
        sentence = "does not use TLS" if authority == "none" else f"cannot be trusted: .*{reason}.*; its certificate"
        with pytest.raises(TrainingError, match=sentence):
            supernode.serve_messages(endpoint, SimpleNamespace(), threading.Event())  # type: ignore[arg-type]
        server.shutdown(socket.SHUT_RDWR)


def test_a_node_whose_disk_is_full_when_it_connects(tmp_path: Path) -> None:
    """A directory below a file can never be written."""
    (tmp_path / "file").touch()
    endpoint = supernode.Endpoint("127.0.0.1:1", None, None, tmp_path / "file" / "state" / "node-id")

    client: Any = SimpleNamespace(register=lambda: None, activate=lambda: 7)
    with (
        pytest.raises(TrainingError, match=r"cannot write to '.*state': Not a directory; free some space there"),
        supernode._activated(client, endpoint, threading.Event()),
    ):
        pass


def test_a_node_that_has_lost_its_key_does_not_connect_without_tls(tmp_path: Path) -> None:
    host = hosts(tmp_path)["hospital-a"]
    (host.directory / "node.key").unlink()
    with pytest.raises(InputError, match=r"has the authority's certificate, ca.crt, but no key, node.key"):
        nodes.run_node(host.directory, host.settings, threading.Event(), lambda: None)
