"""What a deployed server does when nodes are late, gone, wrong or lying, and when it is killed itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import nn

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.core.method import Phase
from bespokefl.core.rows import Rows
from bespokefl.engines.client import ClientSide
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.engines.transports.flower import messenger, records
from bespokefl.engines.transports.flower.node.node import Node
from bespokefl.engines.transports.flower.server import Server
from bespokefl.methods import REGISTRY, Ditto, FedAvg
from tests.contract.conftest import quick
from tests.contract.probes import Listening
from tests.engines.transports.flower.grid import NODES, QUICK, LocalGrid, TestHost, deployment, local_grid, only
from tests.federations import CLASSES, WIDTH, apart, federation, run, same_bits

DATA = federation()
SHORT = replace(QUICK, timeout=0.3, give_up=1.0)
WEST = 102  # hosts three clients: dan, eve, fay


def changed(change: Callable[[dict[str, Any]], dict[str, Any]], when: str = "upload/weights") -> Callable[..., Message]:
    """Answers as they arrive from a node that lies; its other letters are left alone."""

    def tamper(reply: Message) -> Message:
        values = records.unpack(reply.content)
        if when in values:
            reply.content = records.pack(change(values))
        return reply

    return tamper


def scaled(factor: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: values | {"upload/weights": values["upload/weights"] * factor}


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (scaled(float("nan")), "not finite"),
        (scaled(1e9), "absurdly large"),
        (lambda values: values | {"upload/weights": values["upload/weights"].block("0.weight")}, "wrong shape"),
        (lambda values: values | {"upload/weights": values["upload/weights"][:1]}, "dropped out"),
        (lambda values: {"nothing": 1}, "dropped out"),
        (lambda values: values | {"upload/more": torch.zeros(3)}, "wrong shape"),
    ],
)
def test_uploads_that_cannot_be_used_are_refused_and_counted(lie: Any, reason: str, tmp_path: Path) -> None:
    server, grid = deployment(Ditto(), DATA, tmp_path)
    grid.on_reply[WEST] = changed(lie)
    found = server.run()
    assert found.lost == {name: {reason: 2} for name in ("dan", "eve", "fay")}
    assert found.rounds_done == 2 and not found.unscored
    assert all(server.transport.accepted[name] == 0 for name in ("dan", "eve", "fay"))
    honest, _ = deployment(Ditto(), DATA, tmp_path / "honest", hosts=hosts("north", "south"))
    assert apart(found.global_rows, honest.run().global_rows) < 1e-6  # as if the liar had not been there


@pytest.mark.parametrize(
    ("method", "name", "lie", "reason"),
    [
        ("pfedvem", "confidence", float("nan"), "not finite"),
        ("pfedvem", "confidence", -1.0, "impossible"),
        ("selffl", "variance", float("inf"), "not finite"),
        ("ucfl", "variance", -1.0, "impossible"),
        ("fedfomo", "worth", float("nan"), "not finite"),
        ("ifca", "cluster", 99, "impossible"),
    ],
)
def test_so_are_their_numbers(method: str, name: str, lie: float, reason: str, tmp_path: Path) -> None:
    """And the run ends as if the liar's weights had been refused."""
    when = f"upload/{name}"

    def spoilt(values: dict[str, Any]) -> dict[str, Any]:
        return values | {when: torch.full_like(values[when], lie)}

    def not_finite(values: dict[str, Any]) -> dict[str, Any]:
        bad = {key: one * float("nan") for key, one in values.items() if isinstance(one, Rows)}
        return values | bad

    outcomes = []
    for at, change in enumerate((spoilt, not_finite)):
        server, grid = deployment(quick(REGISTRY[method]), DATA, tmp_path / str(at))
        grid.on_reply[WEST] = changed(change, when)
        outcomes.append((server.run(), server.server))
    (found, state), (expected, other) = outcomes
    assert set(found.lost) == {"dan", "eve", "fay"}
    assert {one for reasons in found.lost.values() for one in reasons} == {reason}
    assert found.lost.keys() == expected.lost.keys()
    assert all(same_bits(state[key], other[key]) for key in other if isinstance(other[key], Rows))


def hosts(*names: str) -> dict[str, TestHost]:
    return {name: TestHost(name, only(DATA, NODES[name]), Ditto()) for name in names}


def test_an_answer_that_is_no_answer_is_refused(tmp_path: Path) -> None:
    def garble(reply: Message) -> Message:
        if "upload/weights" in records.unpack(reply.content):
            reply.content["own"]["data"] = b"short"  # type: ignore[index,union-attr,call-overload]
        return reply

    server, grid = deployment(FedAvg(), DATA, tmp_path)
    grid.on_reply[WEST] = garble
    assert server.run().lost.keys() == {"dan", "eve", "fay"}


def test_a_client_that_was_late_goes_back_to_the_state_that_counted(tmp_path: Path) -> None:
    """Round 2's answer of one node is lost on the way: its clients trained, but the server never knew."""
    method = Ditto()
    server, grid = deployment(method, DATA, tmp_path, timeouts=SHORT, rounds=3)
    seen: list[int] = []

    def lose(reply: Message) -> Message | None:
        if "upload/weights" not in records.unpack(reply.content):
            return reply
        seen.append(1)
        return None if len(seen) == 2 else reply

    grid.on_reply[WEST] = lose
    found = server.run()
    assert found.lost == {name: {"dropped out": 1} for name in ("dan", "eve", "fay")}
    # by hand: west's clients take part in rounds 1 and 3 only
    simulated = run_without(method, {2: (3, 4, 5)}, rounds=3)
    assert apart(found.global_rows, simulated.server["weights"]) < 1e-5
    state = states_of(server, grid, tmp_path, "west", 3)
    assert apart(state["personal"], simulated.store.get([3, 4, 5])["personal"]) < 1e-5


def run_without(method: Any, absent: dict[int, tuple[int, ...]], rounds: int) -> Any:
    """A simulation in which some clients do not take part in some rounds."""
    from tests.federations import simulation

    made = simulation(method, DATA, rounds=rounds)
    draw = made.federations[0].draw

    def thinned(number: int, phase: Phase) -> Any:
        full = draw(number, phase)
        left = [client for client in full.trains if client not in absent.get(number, ())]
        return replace(full, trains=left, reports=left, round=replace(full.round, reporting=tuple(left)))

    made.federations[0].draw = thinned
    with made.open():
        for number in range(1, rounds + 1):
            made.round(number, Phase("train", 1))
    return made


def states_of(server: Server, grid: LocalGrid, folder: Path, node: str, number: int) -> Any:
    from bespokefl.engines.transports.flower.node.client_state_store import ClientStateStore

    names = sorted(only(DATA, NODES[node]).names)
    ((_, state),) = ClientStateStore(folder / node / "run").load_states(names, [number] * len(names), number + 1)
    return state


def test_whoever_trains_anyway_does_not_go_back(tmp_path: Path) -> None:
    """Where all train and a sample reports, a late client keeps what it has learnt."""
    server, grid = deployment(Listening(), DATA, tmp_path, timeouts=SHORT, rounds=3)
    seen: list[int] = []

    def lose(reply: Message) -> Message | None:
        if "broken" in records.unpack(reply.content):
            seen.append(1)
            return None if len(seen) == 2 else reply
        return reply

    grid.on_reply[WEST] = lose
    server.run()
    assert states_of(server, grid, tmp_path, "west", 3)["rounds"].tolist() == [3, 3, 3]


def test_a_request_that_comes_twice_is_answered_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    train, learn = Node._train, ClientSide.train

    def learning(self: ClientSide, *given: Any) -> Any:
        trained.append(1)
        return learn(self, *given)

    def twice(self: Node, plan: Any, prepared: Any, values: Any) -> Any:
        first = train(self, plan, prepared, values)
        count = len(trained)
        fresh = Node(self.host, self.folder)  # the process was killed after it had trained
        again = train(fresh, *fresh._prepare(values), values)
        assert len(trained) == count and same_bits(again, first)
        return first

    monkeypatch.setattr(ClientSide, "train", learning)
    monkeypatch.setattr(Node, "_train", twice)
    server, _ = deployment(Ditto(), DATA, tmp_path)
    assert not server.run().lost and trained


@pytest.mark.parametrize("killed_at", [1, 2, 3])
@pytest.mark.parametrize("where", ["before the answers", "before the checkpoint"])
def test_a_server_that_was_killed_goes_on_as_if_nothing_had_been(killed_at: int, where: str, tmp_path: Path) -> None:
    method, settings = Ditto(), {"rounds": 3, "participation": 0.7}
    whole, _ = deployment(method, DATA, tmp_path / "whole", **settings)
    expected = whole.run(checkpoints=Checkpoints(tmp_path / "a", CheckpointInterval(rounds=1), {}))

    class Killed(BaseException):
        pass

    server, _ = deployment(method, DATA, tmp_path / "nodes", **settings)
    commit, save = server.federations[0].commit, server._save

    def dies(draw: Any, *rest: Any) -> Any:
        if draw.round.number == killed_at:
            raise Killed
        return commit(draw, *rest)

    def dies_then(checkpoints: Checkpoints, number: int) -> None:
        if number == killed_at:
            raise Killed
        save(checkpoints, number)

    if where == "before the answers":
        server.federations[0].commit = dies  # type: ignore[method-assign]
    else:
        server._save = dies_then  # type: ignore[method-assign]
    with pytest.raises(Killed):
        server.run(checkpoints=Checkpoints(tmp_path / "b", CheckpointInterval(rounds=1), {}))
    left = Checkpoints(tmp_path / "b", CheckpointInterval(rounds=1), {}).load_latest(3, len(DATA))
    assert (0 if left is None else left.number) == killed_at - 1
    fresh = local_grid(method, DATA, tmp_path / "nodes", first=200)  # the nodes were restarted, with other ids
    second, _ = deployment(method, DATA, tmp_path / "nodes", grid=fresh, **settings)
    found = second.run(checkpoints=Checkpoints(tmp_path / "b", CheckpointInterval(rounds=1), {}))
    assert same_bits(found.server, expected.server) and same_bits(found.personal, expected.personal)
    plain = [{k: v for k, v in line.items() if k != "seconds"} for line in found.history]
    assert plain == [{k: v for k, v in line.items() if k != "seconds"} for line in expected.history]


@pytest.mark.parametrize("answers", [True, False])
def test_a_run_that_is_to_stop_waits_for_nobody(answers: bool, tmp_path: Path) -> None:
    """Between two rounds, and in the middle of one that would take its whole time; it goes on from its checkpoint."""
    server, grid = deployment(Ditto(), DATA, tmp_path, rounds=3)
    checkpoints = Checkpoints(tmp_path / "checkpoints", CheckpointInterval(rounds=1), {})

    def report(progress: Any) -> None:
        if progress.done == 1 and answers:
            server.transport.messenger.stopped = lambda: True
        if progress.done == 1:
            grid.on_reply[WEST] = silent

    def silent(reply: Message) -> Message | None:
        server.transport.messenger.stopped = lambda: True
        return None

    with pytest.raises(messenger.StoppedError):
        server.run(report, checkpoints)
    found = checkpoints.load_latest(3, len(DATA))
    assert found is not None and found.number == 1
    del grid.on_reply[WEST]
    again, _ = deployment(Ditto(), DATA, tmp_path, rounds=3, grid=grid)
    whole, _ = deployment(Ditto(), DATA, tmp_path / "whole", rounds=3)
    assert apart(again.run(None, checkpoints).global_rows, whole.run().global_rows) == 0


def test_a_node_that_comes_back_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes away with the letter, and is back a little later: nobody is lost."""
    monkeypatch.setattr(messenger, "REFRESH", 0.05)
    monkeypatch.setattr(messenger, "RETRY", 0.1)
    server, grid = deployment(Ditto(), DATA, tmp_path, rounds=2)
    expected = run(Ditto(), DATA, rounds=2)[1]
    pulls: list[int] = []
    pull, nodes = grid.pull_messages, grid.get_nodes

    def goes(ids: Any) -> Any:
        pulls.append(1)
        grid.away = {WEST} if len(pulls) == 3 else grid.away
        return pull(ids)

    def comes(*, looks: Any = iter(range(99))) -> Any:  # noqa: B008
        present = nodes()
        if grid.away and next(looks):  # the second time that somebody looks
            grid.away = set()
        return present

    grid.pull_messages, grid.get_nodes = goes, comes  # type: ignore[method-assign]
    found = server.run()
    assert not found.lost and apart(found.global_rows, expected.global_rows) < 1e-5
    assert len(grid.sent) > 3 * 5  # hello, setup, two rounds, scores for three nodes, and some again


def test_too_few_clients(tmp_path: Path) -> None:
    timeouts = replace(SHORT, minimum=4)
    server, grid = deployment(FedAvg(), DATA, tmp_path, timeouts=timeouts)
    grid.on_reply[WEST] = lambda reply: reply if "broken" not in records.unpack(reply.content) else None
    sentence = r"only 3 of at least 4 clients answered in round 1; start the other nodes .*, then resume the run"
    with pytest.raises(TrainingError, match=sentence):
        server.run()


def test_nodes_that_answer_with_an_error_do_not_count_towards_the_minimum(tmp_path: Path) -> None:
    server, grid = deployment(FedAvg(), DATA, tmp_path)
    for node in grid.nodes:
        grid.on_reply[node] = changed(lambda values: {"error": "the roof leaks."}, when="broken")
    sentence = r"only 0 of at least 1 clients answered in round 1; node \w+: the roof leaks, then resume the run"
    with pytest.raises(TrainingError, match=sentence):
        server.run()


def test_a_model_that_differs_is_found_before_the_first_round(tmp_path: Path) -> None:
    def other() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 7), nn.ReLU(), nn.Linear(7, CLASSES))

    made = hosts("north", "south", "west")
    made["south"].factory = other
    server, grid = deployment(Ditto(), DATA, tmp_path, hosts=made)
    with pytest.raises(InputError, match="the model at node south is not the server's"):
        server.run()
    assert not any("upload" in str(records.unpack(message.content)) for message in grid.sent)


def test_a_node_under_another_name_than_its_key_s_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = local_grid(Ditto(), DATA, tmp_path)
    grid.names[WEST] = "east"
    server, _ = deployment(Ditto(), DATA, tmp_path, grid=grid, timeouts=replace(QUICK, gather=0.5))
    assert server.clients_by_node.keys() == {"north", "south"} and "its key belongs to 'east'" in caplog.text


def test_two_nodes_with_the_same_client(tmp_path: Path) -> None:
    made = hosts("north", "south") | {"west": TestHost("west", only(DATA, (1, 3)), Ditto())}
    with pytest.raises(InputError, match="client 'ben' is named by two nodes, south and west"):
        deployment(Ditto(), DATA, tmp_path, hosts=made)


def test_a_full_disk_at_a_node_is_said_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from bespokefl.engines.storage import safetensors_writer

    write = safetensors_writer.write_tensors

    def full(path: Path, *rest: Any) -> str:
        if "south" in str(path):
            raise OSError(28, "No space left on device")
        return write(path, *rest)

    monkeypatch.setattr(safetensors_writer, "write_tensors", full)
    server, _ = deployment(Ditto(), DATA, tmp_path)
    assert server.run().lost == {"ben": {"dropped out": 2}}
    assert "node south: cannot write the states of ben" in caplog.text and "free some space" in caplog.text


@dataclass(frozen=True, kw_only=True)
class Diverging(FedAvg):
    """One client's weights become something that is no number."""

    name = "diverging"

    def local_update(self, task: Any, message: Any, state: Any, work: Any, round: Any) -> Any:
        upload, new = super().local_update(task, message, state, work, round)
        bad = torch.tensor([float("nan") if name == "ben" else 1.0 for name in work.names])
        return {"weights": upload["weights"] * bad}, new


def test_a_client_that_diverges_costs_nobody_else_the_run(tmp_path: Path) -> None:
    server, _ = deployment(Diverging(), DATA, tmp_path)
    found = server.run()
    assert found.lost == {"ben": {"not finite": 2}} and bool(found.global_rows.finite().all())


def test_a_client_whose_loss_is_no_number_is_told_and_not_scored(tmp_path: Path) -> None:
    """A validation example that nobody has looked at is infinite."""

    x = DATA.x.clone()
    x[DATA.validation.of(1)] = torch.inf
    found = deployment(Ditto(), replace(DATA, x=x), tmp_path / "infinite")[0].run()
    expected = deployment(Ditto(), DATA, tmp_path / "sound")[0].run()
    assert found.unscored == ["ben"] and torch.isnan(found.personal["test_accuracy"][1])
    others = [0, 2, 3, 4, 5]
    assert torch.equal(found.personal["test_accuracy"][others], expected.personal["test_accuracy"][others])
    server, grid = deployment(Ditto(), DATA, tmp_path / "all")
    grid.on_reply |= {
        node: changed(lambda values: values | {"score/train_loss": values["score/train_loss"] / 0}, "score/train_loss")
        for node in grid.nodes
    }
    with pytest.raises(TrainingError, match="the loss of all clients became non-finite by round 2"):
        server.run()


@pytest.mark.parametrize(
    "lie",
    [
        lambda loss: {},
        lambda loss: {"score/train_loss": loss[:1]},
        lambda loss: {"score/train_loss": loss * float("nan")},
        lambda loss: {"score/train_loss": loss[:, None]},
        lambda loss: {"score/test_loss": loss / 0, "score/train_loss": loss / 0},
    ],
)
def test_scores_that_are_none(lie: Any, tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> dict[str, Any]:
        rest = {name: one for name, one in values.items() if not name.startswith("score/train_loss")}
        return rest | lie(values["score/train_loss"])

    server, grid = deployment(Ditto(), DATA, tmp_path)
    grid.on_reply[WEST] = changed(change, "score/train_loss")
    found = server.run()
    assert found.unscored == ["dan", "eve", "fay"]
    assert found.history[-1]["personal"]["test_accuracy"] is not None and not found.lost


def test_a_run_s_name_is_no_path(tmp_path: Path) -> None:
    for name in ("../elsewhere", "a/b", "", ".hidden"):
        with pytest.raises(InputError, match="a run's name must consist of"):
            deployment(Ditto(), DATA, tmp_path, run=name)


def test_given_weights_reach_the_clients_that_begin(tmp_path: Path) -> None:
    server, _ = deployment(Ditto(), DATA, tmp_path, warm=True)
    start: Rows = server.task.start * 0.5
    server.task.start = start
    again = Server(Ditto(), server.task, server.settings, server.transport.messenger, "run", {})
    found = again.run()
    _, expected = run(Ditto(), DATA, start=lambda rows: rows * 0.5, warm=True)
    assert apart(found.global_rows, expected.global_rows) < 1e-5


def test_old_states_are_thrown_away(tmp_path: Path) -> None:
    server, _ = deployment(Ditto(), DATA, tmp_path, rounds=8)
    server.run()
    files = sorted(path.name for path in (tmp_path / "west" / "run").glob("round-*"))
    assert 1 <= len(files) <= 4 and files[-1] == "round-00000008.safetensors"


def test_states_and_models_are_for_their_owner_only(tmp_path: Path) -> None:
    server, _ = deployment(Ditto(), DATA, tmp_path)
    server.run()
    written = [path for path in (tmp_path / "west" / "run").iterdir() if path.suffix == ".safetensors"]
    assert any(path.name == "personal.safetensors" for path in written) and len(written) > 1
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in written)


def test_nothing_is_sent_again_while_replies_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a round takes: only silence, for longer than any reply has taken so far, leads to a repeat."""
    server, _ = deployment(FedAvg(), DATA, tmp_path, timeouts=replace(QUICK, resend=10))
    one = server.transport.messenger
    request = messenger.PendingRequest({}, "west", sent=100.0, to=(WEST, one._present[WEST][1]))
    one._last_reply, one._slowest = 100.0, 0.0
    assert not one._due(request, WEST, 109.9) and one._due(request, WEST, 110.0)
    one._last_reply = 105.0  # of another node
    assert not one._due(request, WEST, 114.9) and one._due(request, WEST, 115.0)
    one._slowest = 25.0
    assert not one._due(request, WEST, 204.9) and one._due(request, WEST, 205.0)
    one._present[WEST] = (one._present[WEST][0], "it has restarted")
    assert one._due(request, WEST, 106.0)
    now = [1000.0]
    monkeypatch.setattr(messenger.time, "monotonic", lambda: now[0])
    one._slowest = 0.0
    replies: dict[str, Any] = {}
    requests = {name: messenger.PendingRequest({"what": "hello"}, name) for name in one.known}
    one._step(requests, replies)
    assert len(replies) == 3 and one._last_reply == 1000.0
