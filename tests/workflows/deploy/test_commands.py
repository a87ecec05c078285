"""Errors of `bespoke deploy`: one sentence, exit code 2, and no file is lost."""

import re
import shlex
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from bespokefl import cli
from bespokefl.core.errors import InputError
from bespokefl.engines.transports.flower.security.signing import key_id, read_public_keys
from bespokefl.engines.transports.flower.services import supernode
from bespokefl.workflows.deploy import certificates as keys
from bespokefl.workflows.deploy import init as initialization
from bespokefl.workflows.deploy import node as nodes
from bespokefl.workflows.deploy import runs
from bespokefl.workflows.deploy.layout import Deployment, NodeSettings, host_of
from bespokefl.workflows.deploy.node import LocalHost
from bespokefl.workflows.deploy.runs import RESULT, update_status
from bespokefl.workflows.deploy.server import supervisor


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bespoke(line: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    return int(ended.value.code or 0)


def refused(line: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert bespoke(line) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert re.search(sentence, said) and "Traceback" not in said, said


def made(address: str = "127.0.0.1:9092") -> Deployment:
    return initialization.init(Path("dir"), ["a", "b"], address)


# -- init and renew


@pytest.mark.parametrize(
    "address",
    [
        "höst:9092",
        "https://server:9092",
        "'a\"b:9092'",
        "'server example:9092'",
        "1.2.3.999:1",
        "-a:1",
        "[::x]:1",
        "a:²",
    ],
)
def test_invalid_addresses_are_rejected(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused(f"deploy init dir --node a --address {address}", "an address must be host:port", capfd)
    assert not Path("dir").exists()


@pytest.mark.parametrize("days", ["0", "99999999", "3651"])
def test_invalid_numbers_of_days_are_rejected(days: str, capfd: pytest.CaptureFixture[str]) -> None:
    sentence = f"must be valid for 1 to 3650 days, got {days}"
    refused(f"deploy init dir --node a --days {days}", sentence, capfd)
    assert not Path("dir").exists()
    root = made().root
    before = (root / "server" / "certificates" / "server.crt").read_bytes()
    refused(f"deploy renew dir --days {days}", sentence, capfd)
    assert (root / "server" / "certificates" / "server.crt").read_bytes() == before


def test_a_certificate_may_be_valid_as_long_as_its_authority() -> None:
    assert bespoke("deploy init dir --node a --days 3650") == 0
    assert bespoke("deploy renew dir --days 3650") == 0


def test_init_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys, "write_key_pair", full)
    refused("deploy init dir --node a", "cannot write to 'dir': No space left on device", capfd)
    assert not Path("dir").exists()
    Path("dir").mkdir()
    refused("deploy init dir --node a", "No space left", capfd)
    assert not list(Path("dir").iterdir())


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (b"-----BEGIN PRIVATE KEY-----\nnonsense\n", "must be the authority's key as deploy init wrote it"),
        (b"", "must be the authority's key as deploy init wrote it"),
        (None, "is not the key of the authority in"),
    ],
)
def test_renewing_with_a_wrong_authority_loses_nothing(
    damage: bytes | None, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    root = made().root
    if damage is None:
        damage = (initialization.init(Path("other"), ["a"], "a:1").root / "authority" / "ca.key").read_bytes()
    (root / "authority" / "ca.key").write_bytes(damage)
    certificates = root / "server" / "certificates"
    before = {path.name: path.read_bytes() for path in certificates.iterdir()}
    refused("deploy renew dir", sentence, capfd)
    assert {path.name: path.read_bytes() for path in certificates.iterdir()} == before


def test_a_renewed_certificate_replaces_both_files() -> None:
    certificates = made().server / "certificates"
    before = {path.name: path.read_bytes() for path in certificates.iterdir()}
    assert bespoke("deploy renew dir --days 7") == 0
    after = {path.name: path.read_bytes() for path in certificates.iterdir()}
    assert after.keys() == before.keys() and after["ca.crt"] == before["ca.crt"]
    assert after["server.crt"] != before["server.crt"] and after["server.key"] != before["server.key"]
    assert stat.S_IMODE((certificates / "server.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("moved", [False, True])
def test_a_renewed_key_replaces_the_node_s(moved: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """Also if the node's directory has been moved to its machine."""
    deployment = made()
    name = "a"
    place = deployment.root / "nodes" / name
    before = deployment.node_keys[name].read_bytes()
    if moved:
        shutil.rmtree(deployment.root / "nodes")
    assert bespoke(f"deploy renew dir --node {name}") == 0
    assert f"Node {name} has a new key: copy " in capfd.readouterr().out
    after = deployment.node_keys[name].read_bytes()
    assert after == (place / "node.pub").read_bytes() != before
    assert stat.S_IMODE((place / "node.key").stat().st_mode) == 0o600
    private = supernode.read_private_key(place / "node.key")
    assert key_id(private.public_key()) in read_public_keys(deployment.server / "keys")
    refused("deploy renew dir --node nobody", "unknown node 'nobody'", capfd)


# -- where the server listens


@pytest.mark.parametrize(
    ("address", "listen", "local"),
    [
        ("127.0.0.2:9092", "127.0.0.2", "127.0.0.2:9092"),
        ("localhost:9092", "127.0.0.1", "127.0.0.1:9092"),
        ("[::1]:9092", "::1", "[::1]:9092"),
        ("server_1.example.org:9092", "0.0.0.0", "127.0.0.1:9092"),
        ("[2001:db8::7]:9092", "::", "[::1]:9092"),
    ],
)
def test_listen_and_local_address_follow_from_the_address(address: str, listen: str, local: str) -> None:
    deployment = made(address)
    assert deployment.settings.listen == listen and deployment.local_address == local
    keys.check_certificate(deployment.server / "certificates" / "server.crt", "", deployment.local_host)
    keys.check_certificate(deployment.server / "certificates" / "server.crt", "", host_of(address))


def test_the_certificate_must_be_for_the_address_to_listen_on(capfd: pytest.CaptureFixture[str]) -> None:
    deployment = made("server.example.org:9092")
    file = deployment.server / "server.toml"
    file.write_text(file.read_text().replace('listen = "0.0.0.0"', 'listen = "127.0.0.2"'))
    assert deployment.local_address == "127.0.0.2:9092"
    refused(
        "deploy server dir",
        f"listens on 127.0.0.2, but its certificate is not for that; renew it: bespoke deploy renew {deployment.root}",
        capfd,
    )
    initialization.renew(deployment.root)
    keys.check_certificate(deployment.server / "certificates" / "server.crt", "", "127.0.0.2")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("timeout = 0", "timeout in server.toml must be a number of seconds greater than 0, got 0"),
        ("gather = inf", "gather in server.toml must be"),
        ("resend = nan", "resend in server.toml must be"),
        ("minimum = 0", "minimum in server.toml must be at least 1 client, got 0"),
        ('listen = "all of them"', "listen in server.toml must be an address such as 0.0.0.0"),
        ("minimum = 1.5", r"minimum in '.*server\.toml' must be an integer, got 1\.5"),
        ('insecure = "no"', r"insecure in '.*server\.toml' must be true or false, got 'no'"),
    ],
)
def test_invalid_settings_are_rejected(line: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    file = made().server / "server.toml"
    kept = [one for one in file.read_text().splitlines() if not one.startswith(line.split()[0])]
    file.write_text("\n".join([*kept, line, ""]))
    refused("deploy server dir", sentence, capfd)


def test_missing_settings_are_rejected(capfd: pytest.CaptureFixture[str]) -> None:
    (made().server / "server.toml").write_text("insecure = false\n")
    refused("deploy server dir", r"must have address = \.\.\., as deploy init wrote it", capfd)


def test_directories_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = made()
    state = deployment.root / "nodes" / "a" / "state"
    np.savez("x.npz", x=np.eye(20), y=np.arange(20) % 2)
    for path, line in ((deployment.server, "deploy server dir"), (state, "deploy node dir --name a --data x.npz")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        path.chmod(0o755)  # as a copy from another machine may be
        monkeypatch.setattr(supervisor, "run_server", lambda *_: None)
        monkeypatch.setattr(nodes, "run_node", lambda *_: None)
        assert bespoke(line) == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


# -- a node's own function


@pytest.fixture
def function(here: Path) -> str:
    text = """
    from bespokefl.data import Dataset
    def good(): return Dataset.from_arrays([[1.0, 2.0]] * 20, [0, 1] * 10)
    def bad(): raise ValueError("cannot reach\\nthe database")
    def none(): return None
    """
    (here / "node_data_of_a_test.py").write_text("\n".join(line.strip() for line in text.splitlines()))
    return "node_data_of_a_test"


def test_a_function_in_the_working_directory(function: str, here: Path) -> None:
    own = LocalHost(NodeSettings("a", "a:1", data=f"{function}:good"), here)
    assert own.about()["clients"].keys() == {"a"}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bad", "data function '.*:bad' failed with ValueError: cannot reach the database"),
        ("none", "must return a Dataset or Clients, got NoneType"),
        ("goood", "did you mean 'good'"),
    ],
)
def test_a_function_that_fails(name: str, sentence: str, function: str, capfd: pytest.CaptureFixture[str]) -> None:
    made()
    refused(f"deploy node dir --name a --data {function}:{name}", sentence, capfd)


# -- runs


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--method ditto --model nope", "unknown model 'nope'"),
        ("--method ditto --model 'mlp(hiden=3)'", "unknown key of mlp 'hiden'; did you mean 'hidden'"),
        ("--method ditto --model a-b:c", 'expected a model function as "module:function"'),
        ("--method dito", "unknown method 'dito'; did you mean 'ditto'"),
        ("--method ditto --set prox_weigth=1", "did you mean 'prox_weight'"),
        ("--method ditto --loss msee", "unknown loss 'msee'; did you mean 'mse'"),
        ("--method ditto --start nowhere.safetensors", "there is no file 'nowhere.safetensors'"),
        ("--method ditto --log tensrboard", "unknown tracker 'tensrboard'; did you mean 'tensorboard'"),
        ("--method ditto --run node-id", "a run cannot be named 'node-id'"),
    ],
)
def test_start_rejects_invalid_options_at_once(
    options: str, sentence: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = made()

    def start(deployment: Deployment, config: object, run: str | None) -> str:
        return deployment.run_directory(run or "it").name

    monkeypatch.setattr(runs, "start", start)
    refused(f"deploy start dir {options}", sentence, capfd)
    assert not list((deployment.server / "runs").iterdir())
    assert bespoke("deploy start dir --method ditto --model 'mlp(hidden=(5,))'") == 0


def finished(deployment: Deployment, name: str, text: str) -> None:
    result = deployment.run_directory(name) / RESULT
    result.mkdir(parents=True)
    for file in ("config.toml", "result.json"):
        (result / file).write_text(text)
    update_status(deployment.run_directory(name), state="done")


def test_fetching_twice(capfd: pytest.CaptureFixture[str]) -> None:
    deployment = made()
    finished(deployment, "one", "1")
    finished(deployment, "two", "2")
    assert bespoke("deploy fetch dir --run one --out out") == 0
    refused("deploy fetch dir --run two --out out", "already holds a run; use --overwrite to replace it", capfd)
    assert Path("out/result.json").read_text() == "1"
    assert bespoke("deploy fetch dir --run two --out out --overwrite") == 0
    assert Path("out/result.json").read_text() == "2"
    assert sorted(path.name for path in Path().iterdir()) == ["dir", "out"]
    assert bespoke("deploy fetch dir --run one --out new --overwrite") == 0


def test_fetching_what_failed(capfd: pytest.CaptureFixture[str]) -> None:
    update_status(made().run_directory("one"), state="failed", error="no node came.")
    refused("deploy fetch dir --out out", r"the run one is not done but failed: no node came\.$", capfd)
    with pytest.raises(InputError, match="cannot be named"):
        Deployment.at(Path("dir")).run_directory("node-id")
