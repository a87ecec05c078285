"""Checkpoints that cannot be read, were modified on purpose, or were written by other programs."""

import copy
import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bespokefl import Clients, load, resume, run
from bespokefl.core.errors import BespokeError, DiskError, InputError
from bespokefl.core.task import Task
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.storage import checkpoint_format, checkpoints
from bespokefl.methods import Ditto
from bespokefl.models import build
from bespokefl.workflows.run.convert import engine_data

OPTIONS: dict[str, Any] = {"model": "logistic", "rounds": 4, "workers": 1, "checkpoint_every": 1}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def clients() -> Clients:
    rng = np.random.default_rng(0)
    return Clients.from_arrays(rng.normal(size=(60, 3)), rng.integers(0, 2, 60), np.repeat(np.arange(6), 10))


class StoppedError(Exception):
    """Raised by a progress callback to end a run."""


def begun(folder: Path) -> list[Path]:
    """Start a run, end it after three of four rounds, and return the records of its checkpoints."""

    def end(progress: Any) -> None:
        if progress.done == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        run("ditto", clients(), checkpoint=folder, progress=end, **OPTIONS)
    return sorted(folder.glob("checkpoints/*/record.json"))


def alter(record: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Modify the content of a record and write it with a matching hash."""
    content = json.loads(record.read_text())["content"]
    change(content)
    text = json.dumps(content)
    record.write_text(f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "content": {text}}}\n')


ALTERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no communication": lambda c: c["record"].pop("communication"),
    "no seconds": lambda c: c["record"].pop("seconds"),
    "seconds in words": lambda c: c["record"].update(seconds=["a"] * 3),
    "a second too few": lambda c: c["record"]["seconds"].pop(),
    "no such clients": lambda c: c.update(clients=[i + 50 for i in c["clients"]]),
    "a client twice": lambda c: c.update(clients=[0] * len(c["clients"])),
    "a client too few": lambda c: c["clients"].pop(),
    "a number in words": lambda c: c.update(number="three"),
    "a large number": lambda c: c.update(number=10**9),
    "no round": lambda c: c.update(number=0),
    "identity": lambda c: c.update(identity=[]),
    "record": lambda c: c.update(record=[]),
    "history": lambda c: c["record"]["history"].pop(),
    "history of numbers": lambda c: c["record"].update(history=[1] * 3),
}


@pytest.mark.parametrize("what", ALTERED)
def test_invalid_content_with_a_valid_hash_is_rejected(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run("ditto", clients(), **OPTIONS)
    _, newest = begun(tmp_path / "run")
    alter(newest, ALTERED[what])
    again = run("ditto", clients(), checkpoint=tmp_path / "run", **OPTIONS)
    assert "round-00000003 is damaged" in caplog.text and "resuming after round 2" in caplog.text
    assert np.array_equal(again.personal["loss"], whole.personal["loss"])


@pytest.mark.parametrize("other", ["bespoke checkpoint", ["bespoke checkpoint", 1], None])
def test_a_checkpoint_of_another_version_is_not_called_damaged(other: Any, tmp_path: Path) -> None:
    kept = begun(tmp_path / "run")
    for record in kept:
        alter(record, lambda content: content.update(format=other))
    before = {one: one.read_bytes() for one in kept}
    with pytest.raises(InputError, match="written by another version of Bespoke"):
        run("ditto", clients(), checkpoint=tmp_path / "run", **OPTIONS)
    assert {one: one.read_bytes() for one in kept} == before


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *path) for key, inner in inside for path in paths(inner))]


@pytest.mark.slow
def test_no_content_of_a_record_causes_a_traceback(tmp_path: Path) -> None:
    """With any value replaced by any other, the run resumes or raises a one-sentence error."""
    kept = begun(tmp_path / "run")
    texts = {one: one.read_text() for one in kept}
    content = json.loads(texts[kept[-1]])["content"]
    places = [path for path in paths(content) if path and path[0] != "identity"]

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places), JSON)
    def replaced(path: tuple[Any, ...], value: Any) -> None:
        for one, text in texts.items():
            one.parent.mkdir(parents=True, exist_ok=True)
            one.write_text(text)

        def change(found: dict[str, Any]) -> None:
            for key in path[:-1]:
                found = found[key]
            found[path[-1]] = copy.deepcopy(value)

        alter(kept[-1], change)
        store = checkpoints.Checkpoints(
            tmp_path / "run" / "checkpoints", checkpoints.CheckpointInterval(), content["identity"]
        )
        try:
            found = store.load_latest(4, 6)
            if found is not None:
                with checkpoint_format.reject_if_altered(found):
                    federation.restore(found)
        except BespokeError as error:
            assert len(str(error).splitlines()) == 1

    data = engine_data(clients(), torch.device("cpu"), torch.float32)
    task = Task(build("logistic", (3,), 2))
    (federation,) = Simulation(Ditto(), task, data, Settings(rounds=4, batch_size=10), 2).federations
    replaced()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_an_unreadable_checkpoint_is_not_called_damaged(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary disk failure must not lose a run."""
    whole = run("ditto", clients(), **OPTIONS)
    kept = begun(tmp_path / "run")
    before = {one: one.read_bytes() for one in kept}

    def fails(folder: Path) -> Any:
        raise OSError(number, "the disk is tired")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_format, "read_verified_record", fails)
        with pytest.raises(DiskError, match=r"cannot read the checkpoint .*: the disk is tired"):
            run("ditto", clients(), checkpoint=tmp_path / "run", **OPTIONS)
    assert {one: one.read_bytes() for one in kept} == before
    again = run("ditto", clients(), checkpoint=tmp_path / "run", **OPTIONS)
    assert np.array_equal(again.personal["loss"], whole.personal["loss"])


def scaled(by: float) -> Callable[[Any, Any], Any]:
    return lambda outputs, y: by * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


class Mine(Ditto):
    def global_model(self, server: Any) -> Any:
        return super().global_model(server)


def mine(kind: type[Ditto], by: int) -> Ditto:
    """Return an instance of a class of the same name whose code differs."""

    def global_model(self: Any, server: Any) -> Any:
        return Ditto.global_model(self, server) * (by / by)

    return type(kind.__name__, (Ditto,), {"__module__": kind.__module__, "global_model": global_model})()  # type: ignore


def net(between: type[torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    return lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), between(), torch.nn.Linear(4, 2))


def test_another_torch_version_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path / "run")
    real = checkpoints._environment()
    monkeypatch.setattr(checkpoints, "_environment", lambda: real | {"torch": "9.9"})
    run("ditto", clients(), checkpoint=tmp_path / "run", **OPTIONS)
    (told,) = [one.getMessage() for one in caplog.records if "was made with" in one.getMessage()]
    assert told.endswith(
        f"made with torch {real['torch']} (now 9.9): the run resumes, but its result may differ from that of "
        "an uninterrupted run"
    )


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "loss": ({"loss": scaled(1)}, {"loss": scaled(100)}, "first losses "),
    "method": ({"method": Mine()}, {"method": mine(Mine, 2)}, "method code "),
    "model": ({"model": net(torch.nn.ReLU)}, {"model": net(torch.nn.Tanh)}, "first losses "),
}


@pytest.mark.parametrize("what", OTHERS)
def test_changed_user_code_is_reported(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, now, expected = OTHERS[what]
    usual = {"method": Ditto(), **OPTIONS}

    def end(progress: Any) -> None:
        if progress.done == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(clients=clients(), checkpoint=tmp_path / "run", progress=end, **usual | before)
    run(clients=clients(), checkpoint=tmp_path / "run", **usual | now)
    (told,) = [one.getMessage() for one in caplog.records if "was made with" in one.getMessage()]
    assert expected in told


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (
            {},
            {"loss": scaled(1)},
            "it was trained with nothing from Python, and this run with the loss <lambda> from Python",
        ),
        (
            {"loss": scaled(1)},
            {},
            "it was trained with the loss <lambda> from Python, and this run with nothing from Python",
        ),
        (
            {},
            {"method": Mine()},
            "it was trained with nothing from Python, and this run with the method Mine from Python",
        ),
    ],
)
def test_objects_from_python_make_it_another_run(before: Any, now: Any, told: str, tmp_path: Path) -> None:
    usual = {"method": Ditto(), **OPTIONS}

    def end(progress: Any) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        run(clients=clients(), checkpoint=tmp_path / "run", progress=end, **usual | before)
    with pytest.raises(InputError, match=f"is of another run: {told}; use another directory"):
        run(clients=clients(), checkpoint=tmp_path / "run", **usual | now)


@pytest.mark.parametrize("given", [{"loss": scaled(2)}, {"method": Mine()}])
def test_the_command_does_not_resume_a_run_with_objects_from_python(given: Any, tmp_path: Path) -> None:
    """Its config file would start another run, with the built-in loss or method."""
    data = load("digits").split("classes(k=3)", clients=4, seed=0)
    usual = {"method": Ditto(), **OPTIONS}

    def end(progress: Any) -> None:
        if progress.done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(clients=data, checkpoint=tmp_path / "run", progress=end, **usual | given)
    with pytest.raises(
        InputError, match=r"and this run with nothing from Python; the same call of bespokefl\.run, with"
    ):
        resume(tmp_path / "run")
    assert not run(clients=data, checkpoint=tmp_path / "run", **usual | given).interrupted


def test_unchanged_versions_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path / "run")
    run("ditto", clients(), checkpoint=tmp_path / "run", **OPTIONS)
    assert "resuming after round 3" in caplog.text and "was made with" not in caplog.text
