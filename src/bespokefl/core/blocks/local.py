"""Columns that stay with each client, for any method: a setting of the run, not of the method.

    local = start[local columns],   and at client k, in place of what the server would send:  its own local columns
    upload: without local columns;  local ← local columns of what would have been uploaded

The method itself does not notice: its server half sees rows of the shared columns, its client half whole rows. FedPer
is FedAvg with the head kept local, FedBN is FedAvg with normalization layers kept local.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError, listing
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Message, Method, Phase, Round, State, Update, Uploads
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.task import Task
from bespokefl.core.uploads import Declarations, Reference, Weights

STATE = "local "  # the client's state has its local columns under names that begin like this


def keep_local(method: Method, layout: Layout) -> Method:
    """Return the method with the layout's local columns kept at the clients; itself if that changes nothing."""
    nothing = not layout.local or isinstance(method, KeepLocal) or method.upload(Message()) == {}
    return method if nothing else KeepLocal(method, layout)


class KeepLocal(Method):
    """A method, and the columns of its model that stay with each client."""

    def __init__(self, method: Method, layout: Layout) -> None:
        for name, value in {"name": method.name, "method": method, "layout": layout}.items():
            object.__setattr__(self, name, value)
        self.method: Method
        self.layout: Layout
        declared = method.upload(Message())
        if declared is None:
            raise InputError(f"local_blocks needs a method that declares its uploads, which {method.name} does not.")
        # The value of the message that stands for a client's model, and its local columns.
        found: dict[str, tuple[str, ...]] = {}
        for name, one in declared.items():
            if isinstance(one, Weights):
                value = name if one.reference is not Reference.ZERO else one.change_of
                own = [column for column in self._columns(one) if column in layout.local]
                if value is not None and own:
                    found[value] = tuple(own)
        object.__setattr__(self, "local", found)
        self.local: dict[str, tuple[str, ...]]
        if not found:
            raise InputError(f"{method.name} shares none of {listing(layout.local)}: leave local_blocks out.")

    def _columns(self, declared: Weights) -> tuple[str, ...]:
        return self.layout.names if declared.block is None else self.layout.block(declared.block)

    # -- as the method itself

    def hyper(self) -> dict[str, Any]:
        return self.method.hyper()

    @property
    def needs_groups(self) -> bool:
        return self.method.needs_groups

    def within_budget(self) -> Method:
        return KeepLocal(self.method.within_budget(), self.layout)

    def phases(self, rounds: int) -> list[Phase]:
        return self.method.phases(rounds)

    def workload(self, server: State, round: Round) -> float:
        return self.method.workload(server, round)

    def global_model(self, server: State) -> Rows | None:
        return None  # a model without its local columns is none

    # -- the server's half: shared columns

    def start_server(self, start: Rows, round: Round) -> State:
        return self.method.start_server(_shared(start), round)

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        message = self.method.message(server, cohort, round)
        if any(isinstance(value, Rows) and len(value) != 1 for value in message.shared.values()):
            raise InputError(
                f"{self.name} sends several models to each client at once, of which local columns cannot be kept: "
                "leave local_blocks out."
            )
        return message

    def upload(self, message: Message) -> Declarations:
        declared = dict(self.method.upload(message) or {})
        for name, one in declared.items():
            if isinstance(one, Weights):
                kept = tuple(column for column in self._columns(one) if column not in self.layout.local)
                declared[name] = replace(one, block=kept)
        return declared

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return self.method.aggregate(server, uploads, round)

    # -- the client's half: whole rows

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        own = {STATE + name: start.block(columns).expand(len(cohort)) for name, columns in self.local.items()}
        return self.method.start_clients(start, cohort) | own

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        whole, declared = self._whole(message, state), self.method.upload(message) or {}
        upload, new = self.method.local_update(task, whole, self._inner(state), data, round)
        new = dict(new)
        for name, columns in self.local.items():
            new[STATE + name] = state[STATE + name]
            for uploaded, value in upload.items():
                one = declared.get(uploaded)
                if isinstance(one, Weights) and uploaded == name and one.reference is not Reference.ZERO:
                    new[STATE + name] = value.block(columns)
                elif isinstance(one, Weights) and one.change_of == name:
                    new[STATE + name] = state[STATE + name] + value.block(columns)
        return {name: _shared(value) if isinstance(value, Rows) else value for name, value in upload.items()}, new

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return self.method.personal(task, self._whole(message, state), self._inner(state), data)

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """The method's model for a newcomer, with initial local columns that are then trained alone."""
        filled = {name: self._filled(value, task.start) for name, value in server.items()}
        rows = self.method.newcomer(task, filled, data).expand(len(data))
        hyper = self.hyper()
        lr = next((float(hyper[name]) for name in ("lr", "base_lr") if name in hyper), None)
        if lr is None:
            raise InputError(f"newcomers with local_blocks need a method with the hyper-parameter lr, not {self.name}.")
        fixed = tuple(name for name in self.layout.names if name not in self.layout.local)
        steps = data.num_steps() * data.expected_rounds
        return local_sgd(task.gradient, rows, data, lr, steps=steps, frozen=fixed, **self.method.sgd)

    # -- inside

    def _inner(self, state: State) -> State:
        return {name: value for name, value in state.items() if not name.startswith(STATE)}

    def _whole(self, message: Message, state: State) -> Message:
        """The message with the clients' own local columns; changes and control variates get zeros."""
        declared = self.method.upload(message) or {}

        def whole(name: str, value: Any) -> Any:
            if not self._is_model(value):
                return value
            own = state[STATE + (name if name in self.local else next(iter(self.local)))]
            one = declared.get(name)
            is_change = isinstance(one, Weights) and one.reference is Reference.ZERO
            return self._joined(value.expand(len(own)), own * 0.0 if is_change else own)

        rows = {name: whole(name, value) for name, value in {**message.shared, **message.own}.items()}
        shared = {name: value for name, value in rows.items() if name in message.shared and not self._is_model(value)}
        return Message(shared, {name: value for name, value in rows.items() if name not in shared}, message.stream)

    def _filled(self, value: Any, start: Rows) -> Any:
        """Rows of the server with the initial local columns."""
        if not self._is_model(value):
            return value
        columns = next(iter(self.local.values()))
        return self._joined(value, start.block(columns).expand(len(value)))

    def _is_model(self, value: Any) -> bool:
        """Whether these are rows of the model's columns."""
        return isinstance(value, Rows) and set(value.layout.names) <= set(self.layout.names)

    def _joined(self, shared: Rows, local: Rows) -> Rows:
        blocks = dict(zip(shared.layout.names, shared.blocks, strict=True))
        blocks |= dict(zip(local.layout.names, local.blocks, strict=True))
        layout = self.layout.only(blocks)
        return Rows(layout, [blocks[name] for name in layout.names], size=len(shared))


def _shared(rows: Rows) -> Rows:
    """The columns that do not stay with the client."""
    local = rows.layout.local
    return rows.block(tuple(name for name in rows.layout.names if name not in local)) if local else rows
