"""Settings are declared once, survive the file they are written to, and reject wrong values in one sentence."""

import inspect
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import bespokefl as bf
from bespokefl.cli import app, options, output
from bespokefl.core.errors import InputError
from bespokefl.workflows.run import api, settings, toml
from bespokefl.workflows.run.settings import AT_LEAST_ONE, Mark, RunSettings, read, setting

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
)


def tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@given(st.dictionaries(st.text(min_size=1), SCALARS), st.dictionaries(st.text(), SCALARS))
def test_toml_reads_what_was_written(values: dict[str, Any], table: dict[str, Any]) -> None:
    values.pop("table", None)
    found = tomllib.loads(toml.dumps({**values, "table": table}, dict.fromkeys(values, "two\nlines\0"), "a title"))
    assert {key: tupled(value) for key, value in found.pop("table").items()} == table
    assert {key: tupled(value) for key, value in found.items()} == values
    # 1 == 1.0 == True, so the types are compared as well
    assert [type(tupled(value)) for value in found.values()] == [type(value) for value in values.values()]


def test_toml_has_no_none_and_no_objects() -> None:
    assert tomllib.loads(toml.dumps({"a": None, "b": 1, "t": {"c": None}})) == {"b": 1, "t": {}}
    with pytest.raises(TypeError):
        toml.dumps({"a": object()})


CONFIGS = st.builds(
    RunSettings,
    method=st.text(min_size=1),
    data=st.text(),
    split=st.text(),
    clients=st.integers(1, 10**6),
    model=st.text(),
    head=st.none() | st.text(),
    loss=st.none() | st.text(),
    rounds=st.integers(1, 10**6),
    participation=st.floats(0, 1, exclude_min=True),
    batch_size=st.integers(1, 10**6),
    local_steps=st.none() | st.integers(1, 10**6),
    seed=st.integers(-(2**63), 2**63 - 1),
    newcomers=st.floats(0, 1, exclude_max=True),
    keep_rounds=st.booleans(),
    eval_every=st.integers(0, 100),
    workers=st.integers(0, 64),
    chunk=st.none() | st.integers(1, 64),
    precision=st.sampled_from(["float32", "float64", "bfloat16"]),
    engine=st.sampled_from(["simulation", "reference"]),
    start=st.none() | st.text(),
    set=st.dictionaries(st.text(), SCALARS),
)


@given(CONFIGS)
def test_a_config_is_what_its_file_says(config: RunSettings) -> None:
    assert RunSettings.of(tomllib.loads(config.to_toml())) == config


def test_where_to_write_is_not_part_of_the_file() -> None:
    assert "elsewhere" not in RunSettings(method="ditto", out="elsewhere", overwrite=True).to_toml()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("participation", 0, "participation must be in (0, 1]"),
        ("participation", 1.01, "participation must be in (0, 1]"),
        ("participation", float("nan"), "participation must be in (0, 1]"),
        ("participation", "half", "participation must be a number, got 'half'"),
        ("rounds", 0, "rounds must be at least 1, got 0"),
        ("rounds", 2.5, "rounds must be an integer, got 2.5"),
        ("rounds", True, "rounds must be an integer, got True"),
        ("rounds", None, "rounds must be an integer, got None"),
        ("clients", 0, "clients must be at least 1"),
        ("batch_size", 0, "batch_size must be at least 1"),
        ("local_epochs", 0, "local_epochs must be at least 1"),
        ("local_steps", 0, "local_steps must be at least 1"),
        ("newcomers", 1, "newcomers must be in [0, 1), the share of clients held back from training, got 1.0"),
        ("newcomers", -0.1, "newcomers must be in [0, 1)"),
        ("keep_rounds", 1, "keep_rounds must be true or false, got 1"),
        ("eval_every", -1, "eval_every must be 0"),
        ("workers", -1, "workers must be 0"),
        ("chunk", 0, "chunk must be at least 1"),
        ("precision", "float16", "precision must be 'float32' or 'float64' or 'bfloat16', got 'float16'"),
        ("engine", "warp", "engine must be 'simulation' or 'reference'"),
        ("method", 3, "method must be text, got 3"),
        ("data", "\ud800", "data must be text"),
        ("overwrite", "yes", "overwrite must be true or false"),
        ("set", [1], "set must be a table"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        RunSettings(**{"method": "ditto", key: value})
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_unknown_key_gets_a_guess() -> None:
    with pytest.raises(InputError, match="unknown key 'ronds'; did you mean 'rounds'"):
        RunSettings.of({"method": "ditto", "ronds": 3})


def test_a_method_is_needed() -> None:
    with pytest.raises(InputError, match="a run needs a method"):
        RunSettings.of({"rounds": 3})


def test_a_file_may_write_keys_as_flags_and_name_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own.npz").touch()
    file = tmp_path / "config.toml"
    file.write_text('method = "ditto"\nbatch-size = 8\ndata = "own.npz"\nsplit = "nowhere.json"\n[set]\nlr = 0.5\n')
    config = RunSettings.of(read(file))
    assert (config.batch_size, config.set) == (8, {"lr": 0.5})
    assert config.data == str(tmp_path / "own.npz")
    assert config.split == "nowhere.json"  # not beside the file: as it stands


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("rounds = ", "must be a TOML file"), ("batch-size = 1\nbatch_size = 2", "has batch_size twice")],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / "config.toml")
    with pytest.raises(InputError, match="cannot read the config"):
        read(tmp_path / "none.toml")


def test_epochs_and_steps_do_not_go_together() -> None:
    with pytest.raises(InputError, match="give local_epochs or local_steps, not both, got 2 and 3"):
        RunSettings(method="ditto", local_epochs=2, local_steps=3)
    assert RunSettings(method="ditto", local_steps=3).local_epochs == 1


# -- declared once

FIELDS = {one.name: one for one in fields(RunSettings)}
SAMPLES = {"task": "regression", "missing": "mean", "scale": "own", "precision": "float64", "engine": "reference"}
SAMPLES |= {"cluster": "auto"}
PYTHON_ONLY = {"method", "clients", "checkpoint", "progress", "callbacks"}


def sample(kind: Any) -> Any:
    """A value that settings of this type accept, other than None."""
    first = get_args(kind)[0] if type(None) in get_args(kind) else kind
    return {str: "s", int: 1, float: 0.5, bool: True}.get(get_origin(first) or first, {"lr": 1})


@cache
def flags(command: str) -> dict[str, Any]:
    """The options of a command as the command line shows them, by flag."""
    found = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    return {flag: one for one in found for flag in one.opts}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_a_flag_a_key_and_an_argument(name: str) -> None:
    one = FIELDS[name]
    shown = flags("run")["method" if name == "method" else f"--{name.replace('_', '-')}"]
    assert shown.help.startswith(one.metadata["help"])
    assert RunSettings.of({"method": "ditto"} | tomllib.loads(RunSettings(method="ditto").to_toml())) == RunSettings(
        method="ditto"
    )
    written = name in tomllib.loads(
        RunSettings(**{"method": "m", "clip": 1.0, name: SAMPLES.get(name) or sample(one.type)}).to_toml()
    )
    assert written is (Mark.WRITING not in one.metadata["marks"])
    with pytest.raises(InputError, match=f"{name} must be"):
        RunSettings.of({"method": "ditto", name: object()})
    loaded = name in ("method", "set") or one.metadata["marks"] & (Mark.LOADING | Mark.WRITING)
    assert (name in inspect.signature(bf.run).parameters) == (not loaded or name in PYTHON_ONLY)


def test_flags_keys_and_arguments_are_the_same_settings() -> None:
    """No option is listed anywhere but in RunSettings."""
    shown = {one.name for one in flags("run").values()} - {"config", "help", *output.OPTIONS}
    assert {name.removesuffix("_") for name in shown} == FIELDS.keys()
    arguments = inspect.signature(bf.run).parameters
    assert set(arguments) == {*RunSettings.arguments(), *PYTHON_ONLY}
    for name in RunSettings.arguments():
        assert arguments[name].default == FIELDS[name].default
        assert f"\n    {name} : " in str(bf.run.__doc__)
        assert name in bf.run.__annotations__
    assert "{settings}" not in str(bf.run.__doc__) and "settings" not in bf.run.__annotations__


def test_a_new_field_appears_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Extended(RunSettings):
        patience: int = setting(3, "Rounds without improvement.", panel="Output", check=AT_LEAST_ONE)

    for module in (settings, options, api):
        monkeypatch.setattr(module, "RunSettings", Extended)
    monkeypatch.setattr(options, "RUN_OPTIONS", options._run_options())

    @options.takes_run()
    def command(settings: Any) -> None:
        found.append(settings)

    found: list[Any] = []
    assert inspect.signature(command).parameters["patience"].annotation.__metadata__[0].help.endswith("Default: 3.")
    command(method="ditto", patience=5)
    assert found[0].patience == 5 and "patience = 5" in found[0].to_toml()
    with pytest.raises(InputError, match="patience must be at least 1, got 0"):
        Extended.of({"method": "ditto", "patience": 0})

    def train(**settings: Any) -> Any:
        """{settings}"""

    described: Callable[..., Any] = api.takes_settings(train)
    assert inspect.signature(described).parameters["patience"].default == 3
    assert "patience : int, default=3\n        Rounds without improvement." in str(described.__doc__)


def test_an_unknown_argument_gets_a_guess() -> None:
    clients = bf.load("digits").split("iid", clients=2)
    for wrong, sentence in (
        ({"ronds": 3}, "unknown argument of run 'ronds'; did you mean 'rounds'"),
        ({"data": "digits"}, "unknown argument of run 'data'"),  # a setting, but clients are loaded already
        ({"out": "here"}, "unknown argument of run 'out'"),
    ):
        with pytest.raises(InputError, match=sentence):
            bf.run("local", clients, **wrong)


def test_a_metric_to_follow_is_checked() -> None:
    clients = bf.load("digits").split("iid", clients=2, seed=0)
    quick: dict[str, Any] = {"model": "logistic", "rounds": 2, "workers": 1, "eval_every": 1}
    found = bf.run("fedavg", clients, follow="Balanced accuracy", **quick)
    assert all("test_balanced_accuracy" in line["personal"] for line in found.rounds)
    with pytest.raises(InputError, match="the metric 'rmse' is not defined for these models"):
        bf.run("fedavg", clients, follow="rmse", **quick)
    with pytest.raises(InputError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        bf.run("fedavg", clients, follow="acuracy", **quick)
