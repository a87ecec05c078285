"""Invalid and late uploads are rejected before aggregation, and the round continues."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, NONE, Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.faults import FAULTS, Faults
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.wire import under
from bespokefl.methods import REGISTRY, FedAvg
from bespokefl.workflows.run.api import run
from tests.contract.conftest import params, quick
from tests.contract.probes import PROBES
from tests.contract.test_methods import assert_near, normed, snapshot
from tests.engines.transports.flower.grid import deployment
from tests.faults.test_resume import SMALL, clients
from tests.federations import apart, federation, mlp, same_bits, simulation
from tests.federations import run as simulate

pytestmark = pytest.mark.slow  # keeps `make check` under two minutes

DATA = federation(dtype=torch.float64)
OPTIONS: dict[str, Any] = {"rounds": 4, "participation": 0.67}


Lost = Callable[[int, str], bool]  # whether a client's upload of a round is lost


@pytest.fixture(params=params(REGISTRY))
def method(request: pytest.FixtureRequest) -> Method:
    return quick(REGISTRY[request.param])


@pytest.fixture(params=params(name for name in REGISTRY if name != "local"))
def uploading(request: pytest.FixtureRequest) -> Method:
    return quick(REGISTRY[request.param])


def keeps_state(kind: type[Method]) -> bool:
    if kind.name in ("local", "ending"):  # their states change only in rounds without uploads
        return False
    return bool(kind().start_clients(Task(mlp).start, ["somebody"]))


@pytest.fixture(params=params([name for name, kind in (REGISTRY | PROBES).items() if keeps_state(kind)]))
def stateful(request: pytest.FixtureRequest) -> Method:
    """Every method whose clients keep a state between rounds."""
    return quick((REGISTRY | PROBES)[request.param])


@dataclass
class ByHand:
    """A run without an engine: calls the method's functions client by client; some uploads never arrive."""

    made: Simulation
    lost: Lost

    def __post_init__(self) -> None:
        self.models: dict[int, Rows] = {}

    def run(self) -> "ByHand":
        made, self.states, self.up, self.down = self.made, {}, [0, 0], [0, 0]
        method, federation = made.method, made.federations[0]
        self.server = method.start_server(made.task.start, federation.round(0, "start"))
        phases = [phase for phase in method.phases(made.settings.rounds) for _ in range(phase.rounds)]
        self.history: list[tuple[int, set[str]]] = []
        for number, phase in enumerate(phases, start=1):
            drawn = federation.draw(number, phase)
            gone = {client for client in drawn.reports if self.lost(number, made.data.names[client])}
            uploads = {}
            for client in drawn.trains:
                message = method.message(self.server, [client], drawn.round)
                count(self.down, message.shared, message.own)
                reply = made.side.train([client], message, self.state(client), drawn.round)
                if client in drawn.reports:
                    count(self.up, reply.upload)
                    uploads[client] = reply.upload
                if not uploads.get(client):
                    gone -= {client}  # a client that uploads nothing, as in Local, cannot upload anything invalid
                if client not in gone or phase.trains == ALL:
                    self.states[client] = reply.state
            sizes = made.data.train.sizes
            left = sorted(uploads.keys() - gone, key=lambda client: (-int(sizes[client]), client))
            if left:
                honest = Uploads(left, sizes[left], [uploads[client] for client in left])
                self.server = method.aggregate(self.server, honest, federation.round(number, phase.name, tuple(left)))
            self.history.append((len(left), {made.data.names[client] for client in gone}))
        return self

    def state(self, client: int) -> State:
        made = self.made
        new = made.method.start_clients(made.task.start, [made.data.names[client]])
        return self.states.get(client, new)

    def personal(self, client: int) -> Rows:
        if client not in self.models:
            made, number = self.made, len(self.history)
            message = made.method.message(self.server, [client], made.federations[0].round(number, "evaluate"))
            self.models[client] = made.side.personal([client], message, self.state(client), number)
        return self.models[client]

    def assert_same(self, made: Simulation, outcome: Outcome, *, sent: bool = True) -> None:
        """Compare the server, all clients' states and models, the lost uploads and the traffic."""
        self.assert_same_server(outcome)
        for client in range(len(made.data)):
            assert_near(made.store.get([client]), self.state(client), 1e-10)
            assert apart(outcome.personal_rows[client : client + 1], self.personal(client)) < 1e-10
        found = outcome.communication
        assert [found.down_bytes, found.down_floats] == self.down
        assert not sent or [found.up_bytes, found.up_floats] == self.up

    def assert_same_server(self, outcome: Outcome) -> None:
        assert_near(outcome.server, self.server, 1e-10)
        assert [(line["reported"], set(line.get("lost", {}))) for line in outcome.history] == self.history


@dataclass
class Remembered:
    """Clients' replies: who trains again from the same bits, with the same method and data, is not asked again."""

    replies: dict[tuple[Any, ...], list[tuple[Any, Any]]] = field(default_factory=dict)

    def watch(self, made: Simulation, monkeypatch: pytest.MonkeyPatch, change: Callable[[int, State], State]) -> None:
        """Let a simulation use these replies; `change` is told the client and its upload, and returns what it sends."""
        train = made.side.train

        def remembered(cohort: Sequence[int], message: Message, state: State, round: Round) -> Any:
            given = [dict(message.shared), dict(message.own), state]
            known = self.replies.setdefault((*cohort, "in", round.number, round.phase), [])
            reply = next((reply for before, reply in known if same_bits(given, before)), None)
            if reply is None:
                before = snapshot(given)
                reply = train(cohort, message, state, round)
                known.append((before, reply))
            return replace(reply, upload=change(cohort[0], dict(reply.upload)))

        monkeypatch.setattr(made.side, "train", remembered)


def count(total: list[int], *values: Mapping[str, Any]) -> None:
    """Add the bytes and numbers of these values to the total."""
    for value in [value for some in values for value in some.values()]:
        for tensor in value.blocks if isinstance(value, Rows) else [torch.as_tensor(value)]:
            total[0] += tensor.numel() * tensor.element_size()
            total[1] += tensor.numel()


def test_lost_uploads_equal_missing_reports(method: Method) -> None:
    """However an upload is lost, the result is as if the client had not reported; its traffic counts."""
    drawn = Faults.of("slow:0.3")
    expected = ByHand(
        simulation(method, DATA, **OPTIONS), lambda number, name: drawn.of_client(0, number, name) == "slow"
    ).run()
    assert method.name == "local" or any(lost for _, lost in expected.history)
    late: Outcome | None = None
    for kind in ("slow", "nan", "huge", "wrong-shape"):
        made, outcome = simulate(method, DATA, faults=Faults.of(f"{kind}:0.3"), **OPTIONS)
        expected.assert_same(made, outcome)
        assert outcome.personal_rows.finite().all()
        late = outcome if late is None else late  # the kind of loss changes no bit of the result
        assert same_bits(outcome.personal_rows, late.personal_rows) and outcome.lost.keys() == late.lost.keys(), kind


@pytest.mark.parametrize("kind", ["slow", "nan", "huge", "wrong-shape"])
def test_a_rejected_client_keeps_its_previous_state(stateful: Method, kind: str) -> None:
    """To the last bit, while other states change. If all clients train in every round, all states change.

    A survey of all clients changes no state.
    """
    # With a normalization layer, which some methods keep at the clients.
    made = simulation(stateful, DATA, factory=normed, faults=Faults.of(f"{kind}:0.5"), rounds=2)
    store, refusals = made.store, 0
    phases = [phase for phase in stateful.phases(2) for _ in range(phase.rounds)]
    with made.open():
        for number, phase in enumerate(phases, start=1):
            before = [store.get([client]) for client in range(len(DATA))]
            made.round(number, phase)
            lost = made.federations[0].history[-1].get("lost", {})
            for client, name in enumerate(DATA.names):
                back = name in lost and phase.trains != ALL
                same = back or phase.trains == phase.reports == ALL
                assert same_bits(store.get([client]), before[client]) == same, (number, name)
                refusals += back
    assert refusals or all(phase.trains == ALL for phase in phases if phase.reports != NONE)


# -- uploads of a wrong shape, with few or no other uploads to compare with


def narrower(value: Any) -> Any:
    """Keep only the first parameter of rows; remove the last axis of numbers, or add one."""
    if not isinstance(value, Rows):
        return value[..., 0] if value.dim() > 1 else value.unsqueeze(1).repeat(1, 7)
    first = value.layout.names[:1]
    return Rows(value.layout.only(first), value.blocks[:1])


def retyped(value: Any) -> Any:
    if isinstance(value, Rows):
        return value.map(lambda block: block.float())
    return value.float() if value.is_floating_point() else value.double()


def each(change: Callable[[Any], Any]) -> list[Callable[[State], State]]:
    """Return functions that change an upload's first value, or its last: rows and numbers, if it has both."""
    return [
        lambda upload, at=at: upload | {name: change(upload[name]) for name in [list(upload)[at]]}  # type: ignore[misc]
        for at in (0, -1)
    ]


def nothing(upload: State) -> State:
    return {}


def partly_retyped(upload: State) -> State:
    """Change the dtype of the last parameter of the first rows only, or of a number if there are no rows."""
    name = next(iter(upload))
    if not isinstance(upload[name], Rows):
        return upload | {name: retyped(upload[name])}
    *others, last = upload[name].blocks
    return upload | {name: Rows(upload[name].layout, [*others, last.float()])}


WRONG: list[Callable[[State], State]] = [
    *each(narrower),
    *each(retyped),
    nothing,
    partly_retyped,
    lambda upload: {name: upload[name] for name in list(upload)[1:]},
    lambda upload: upload | {"more": torch.ones(len(next(iter(upload.values()))))},
    lambda upload: {f"{name} ": value for name, value in upload.items()},
]
PAIR = federation((5, 9), dtype=torch.float64)


@pytest.mark.parametrize(
    ("who", "participation"), [({"ada"}, 1.0), ({"ben"}, 1.0), ({"ada"}, 0.5), ({"ada", "ben"}, 1.0)]
)
def test_a_wrong_shape_is_rejected_without_a_majority(
    uploading: Method, who: set[str], participation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one of two clients, the only client of a round, and all clients: the server is as if they had not reported."""
    options: dict[str, Any] = {"rounds": 3, "participation": participation, "chunk": 1}
    expected = ByHand(simulation(uploading, PAIR, **options), lambda number, name: name in who).run()
    replies = Remembered()
    for wrong in WRONG:
        made = simulation(uploading, PAIR, **options)

        def lying(client: int, upload: State, wrong: Callable[[State], State] = wrong) -> State:
            return wrong(upload) if upload and PAIR.names[client] in who else upload

        replies.watch(made, monkeypatch, lying)
        outcome = made.run()
        expected.assert_same(made, outcome, sent=False)
        assert {reason for reasons in outcome.lost.values() for reason in reasons} == {"wrong shape"}
        assert outcome.lost.keys() <= who


def test_a_deployed_server_rejects_a_wrong_shape(uploading: Method, tmp_path: Path) -> None:
    """From a node with three clients in the first two rounds; in the third its clients start from their old states."""
    made = simulation(uploading, DATA, rounds=3)
    expected = ByHand(made, lambda number, name: number < 3 and name in ("dan", "eve", "fay")).run()
    for at, wrong in enumerate((WRONG[1], nothing, partly_retyped)):
        server, grid = deployment(uploading, DATA, tmp_path / str(at), rounds=3)
        seen: list[int] = []

        def lie(reply: Any, wrong: Any = wrong, seen: list[int] = seen) -> Any:
            values = records.unpack(reply.content)
            seen += [1] * ("broken" in values)
            upload = under("upload", values)
            if upload and len(seen) < 3:
                rest = {name: value for name, value in values.items() if not name.startswith("upload/")}
                changed = {f"upload/{name}": value for name, value in wrong(upload).items()}
                reply.content = records.pack(rest | changed)
            return reply

        grid.on_reply[102] = lie
        outcome = server.run()
        expected.assert_same_server(outcome)
        assert outcome.lost.keys() == {"dan", "eve", "fay"}
        assert all(reasons == {"wrong shape": 2} for reasons in outcome.lost.values())


@dataclass(frozen=True, kw_only=True)
class Undeclared(Method):
    """A user's method that does not declare its upload: a layer, and two numbers per client."""

    def local_update(self, task: Task, message: Message, state: State, work: CohortData, round: Round) -> Update:
        trained = local_sgd(task.gradient, message["weights"], work, 0.1)
        return {"layer": trained.block("2"), "sizes": torch.stack([work.n, work.n**2], 1)}, state

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        layer = uploads.mean("layer", by=uploads["sizes"][:, 1])
        return {"weights": server["weights"].with_block(layer)}

    def newcomer(self, task: Task, server: State, work: CohortData) -> Rows:
        rows: Rows = server["weights"]
        return rows


def test_a_method_without_a_declared_upload_works(tmp_path: Path) -> None:
    made, outcome = simulate(Undeclared(), DATA)
    assert not outcome.lost and apart(outcome.server["weights"], made.task.start) > 1e-3
    deployed = deployment(Undeclared(), DATA, tmp_path)[0].run()
    assert not deployed.lost and apart(deployed.server["weights"], outcome.server["weights"]) < 1e-10
    some = simulate(Undeclared(), DATA, faults=Faults.of("wrong-shape:0.3"))[1]
    late = simulate(Undeclared(), DATA, faults=Faults.of("slow:0.3"))[1]
    assert some.lost.keys() == late.lost.keys() != set() and same_bits(some.server, late.server)


# -- other faults


def test_every_method_survives_faults_of_all_kinds(method: Method) -> None:
    faults = Faults.of("drop:0.3, slow:0.1, nan:0.1, huge:0.1, wrong-shape:0.1")
    outcome = simulate(method, DATA, faults=faults, rounds=5)[1]
    assert outcome.personal_rows.finite().all()
    assert outcome.lost


@pytest.mark.parametrize("kind", FAULTS)
def test_every_method_survives_without_any_valid_upload(method: Method, kind: str) -> None:
    outcome = simulate(method, DATA, faults=Faults.of(f"{kind}:1"), rounds=2)[1]
    assert outcome.personal_rows.finite().all()
    assert not sent(method) or all(line["reported"] == 0 for line in outcome.history)


class AtFirst(Faults):
    """All uploads of the first round are late, and no others."""

    def of_client(self, seed: int, number: int, client: str) -> str | None:
        return "slow" if number == 1 else None


def test_every_method_survives_a_first_round_without_uploads(method: Method) -> None:
    made, outcome = simulate(method, DATA, faults=AtFirst(), rounds=3)
    assert outcome.personal_rows.finite().all()
    assert method.newcomer(made.task, made.server, made.side.cohort_data([0, 1], 0)).finite().all()


@pytest.mark.parametrize("name", ["ucfl", "ucfl-parallel"])
def test_ucfl_without_a_survey_is_fedavg(name: str) -> None:
    method = REGISTRY[name](lr=0.05, momentum=0.0)
    found = simulate(method, DATA, faults=AtFirst(), rounds=3)[0].server["weights"]
    assert apart(found, simulate(FedAvg(lr=0.05), DATA, faults=AtFirst(), rounds=4)[0].server["weights"]) < 1e-12


def test_all_clients_drop_out() -> None:
    made, outcome = simulate(FedAvg(), DATA, faults=Faults.of("drop:1"), **OPTIONS)
    assert same_bits(made.server["weights"], made.task.start)
    assert all(line["trained"] == line["reported"] == 0 for line in outcome.history)


def test_a_dropped_client_equals_one_that_was_not_drawn() -> None:
    """FedAvg is the mean of the remaining clients, whether the others dropped out or were late."""
    faults = Faults.of("drop:0.5")
    gone = {name for name in DATA.names if faults.of_client(0, 1, name) == "drop"}
    assert 0 < len(gone) < len(DATA)
    dropped = simulate(FedAvg(), DATA, faults=faults, rounds=1)[0].server["weights"]
    late = simulate(FedAvg(), DATA, faults=Faults.of("slow:0.5"), rounds=1)[0].server["weights"]
    assert apart(dropped, late) < 1e-12
    assert apart(dropped, simulate(FedAvg(), DATA, rounds=1)[0].server["weights"]) > 1e-4


# The numbers in uploads, and values that would break the aggregation.
NUMBERS: dict[str, list[float]] = {
    "confidence": [math.nan, math.inf, -math.inf, 0, -1, 1e30, 1e-30],  # of pFedVEM
    "variance": [math.inf, -math.inf, -1, 1e30],  # of Self-FL and UCFL, where NaN is "undefined"
    "worth": [math.nan, math.inf, -math.inf, 1e30],  # of FedFOMO
    "cluster": [-1, 99],  # of IFCA
}
FAILING = Faults.of("slow:0.3")


def poisoned(method: Method, value: float) -> Method:
    """Return the method with clients that upload this value where `FAILING` would make them late.

    Uploads without numbers, as in UCFL's later rounds, get huge rows.
    """

    def local_update(self: Method, *given: Any) -> Update:
        upload, state = super(type(self), self).local_update(*given)
        work, round = given[-2:]
        late = torch.tensor([FAILING.of_client(round.seed, round.number, name) == "slow" for name in work.names])
        rows_only = all(isinstance(value, Rows) for value in upload.values())
        for name, numbers in upload.items():
            if isinstance(numbers, Rows):
                upload[name] = numbers.replace(late, numbers[late] * 1e9) if rows_only else numbers
            else:
                assert name in NUMBERS, f"say above what is impossible for {name}"
                upload[name] = numbers.clone()
                upload[name][late] = int(value) if name == "cluster" else value
        return upload, state

    kind = type("Poisoned", (type(method),), {"local_update": local_update})
    return kind(**method.hyper())  # type: ignore[no-any-return]


def sent(method: Method) -> set[str]:
    """Return the names of all values that a method uploads."""
    seen: set[str] = set()

    def local_update(self: Method, *given: Any) -> Update:
        upload, state = super(type(self), self).local_update(*given)
        seen.update(upload)
        return upload, state

    kind = type("Seen", (type(method),), {"local_update": local_update})
    simulate(kind(**method.hyper()), DATA, rounds=1)
    return seen


def test_no_number_of_an_upload_poisons_the_others(method: Method) -> None:
    expected = simulate(method, DATA, faults=FAILING, **OPTIONS)[1]
    for value in {value for name in sent(method) & NUMBERS.keys() for value in NUMBERS[name]}:
        outcome = simulate(poisoned(method, value), DATA, **OPTIONS)[1]
        assert same_bits(outcome.personal_rows, expected.personal_rows), value
        assert outcome.lost.keys() == expected.lost.keys() != set()


def test_faults_occur_at_the_given_rates() -> None:
    faults = Faults.of("nan:0.05, huge:0.01, drop:0.1, slow:0.1, wrong-shape:0.01")
    drawn = [faults.of_client(3, number, f"c{client}") for number in range(100) for client in range(100)]
    for kind, rate in {"nan": 0.05, "huge": 0.01, "drop": 0.1, "slow": 0.1, "wrong-shape": 0.01}.items():
        assert drawn.count(kind) / 1e4 == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / 1e4))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nam:0.1", "unknown fault 'nam'; did you mean 'nan'"),
        ("nan", "a fault must be written kind:share, as in drop:0.1, got 'nan'."),
        ("drop:2", "the share of clients that fail by drop must be in [0, 1], got 2."),
        ("nan:0.1, nan:0.9", "each fault must be given once, got nan twice in 'nan:0.1, nan:0.9'; leave one out."),
        ("drop:0.6, nan:0.6", "the shares of all faults must add up to at most 1, got 1.2."),
    ],
)
def test_invalid_faults_are_rejected(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        Faults.of(text)
    assert sentence in str(raised.value)


def test_lost_uploads_are_counted_and_reported(tmp_path: Path) -> None:
    result = run("ditto", clients(), faults="nan:0.5", **SMALL)
    written = json.loads((result.save(tmp_path / "run") / "result.json").read_text())
    lost = [line.get("lost", {}) for line in result.rounds]
    assert sum(map(len, lost)) > 0
    for name, reasons in written["lost"].items():
        assert reasons == {"not finite": sum(name in line for line in lost)}
    assert any("Uploads that did not count" in note for note in result.notes)
    assert set(FAULTS) == {"nan", "huge", "wrong-shape", "slow", "drop"}
