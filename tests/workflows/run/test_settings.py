"""A config survives the file it is written to, and refuses what makes no sense, in one sentence."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.workflows.run import toml
from bespokefl.workflows.run.settings import Config, read

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
    Config,
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
    precision=st.sampled_from(["float32", "float64"]),
    engine=st.sampled_from(["simulation", "reference"]),
    start=st.none() | st.text(),
    set=st.dictionaries(st.text(), SCALARS),
)


@given(CONFIGS)
def test_a_config_is_what_its_file_says(config: Config) -> None:
    assert Config.of(tomllib.loads(config.to_toml())) == config


def test_where_to_write_is_not_part_of_the_file() -> None:
    assert "elsewhere" not in Config(method="ditto", out="elsewhere", overwrite=True).to_toml()


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
        ("precision", "float16", "precision must be 'float32' or 'float64', got 'float16'"),
        ("engine", "warp", "engine must be 'simulation' or 'reference'"),
        ("method", 3, "method must be text, got 3"),
        ("data", "\ud800", "data must be text"),
        ("overwrite", "yes", "overwrite must be true or false"),
        ("set", [1], "set must be a table"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Config(**{"method": "ditto", key: value})
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_unknown_key_gets_a_guess() -> None:
    with pytest.raises(InputError, match="unknown key 'ronds'; did you mean 'rounds'"):
        Config.of({"method": "ditto", "ronds": 3})


def test_a_method_is_needed() -> None:
    with pytest.raises(InputError, match="a run needs a method"):
        Config.of({"rounds": 3})


def test_a_file_may_write_keys_as_flags_and_name_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own.npz").touch()
    file = tmp_path / "config.toml"
    file.write_text('method = "ditto"\nbatch-size = 8\ndata = "own.npz"\nsplit = "nowhere.json"\n[set]\nlr = 0.5\n')
    config = Config.of(read(file))
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
        Config(method="ditto", local_epochs=2, local_steps=3)
    assert Config(method="ditto", local_steps=3).local_epochs == 1
