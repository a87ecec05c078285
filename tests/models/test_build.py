"""Models are found by name, in the user's own module, or given; each call makes a new one."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from bespokefl.core.errors import InputError
from bespokefl.models import MODELS, build, names

SHAPES = [(64,), (8, 8), (1, 8, 8), (28, 28), (1, 28, 28), (3, 32, 32), (3, 12, 40)]


class Net(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int = 2) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0], classes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_shapes(name: str, shape: tuple[int, ...]) -> None:
    if name == "lenet" and len(shape) == 1:
        return
    module = build(name, shape, 7)()
    batch = torch.rand(5, *shape)
    assert module(batch).shape == (5, 7)
    assert build(name, shape, 1)()(batch).shape == (5, 1)
    assert {key.split(".")[0] for key in module.state_dict()} == ({"head"} if name == "logistic" else {"base", "head"})
    assert isinstance(module.head, nn.Linear)
    assert list(module.state_dict())[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("name", MODELS)
def test_vmap_over_many_models(name: str) -> None:
    """The models of a cohort, stacked, give what each gives alone."""
    modules = [build(name, (1, 8, 8), 3)() for _ in range(4)]
    stacked, _ = torch.func.stack_module_state(modules)
    x = torch.rand(4, 6, 1, 8, 8)
    together = torch.vmap(lambda weights, batch: torch.func.functional_call(modules[0], weights, batch))(stacked, x)
    for module, batch, output in zip(modules, x, together, strict=True):
        assert torch.allclose(module(batch), output, atol=1e-6)


def widths(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(one.weight.shape) for one in module.modules() if isinstance(one, nn.Linear | nn.Conv2d)]


def test_sizes_by_hand() -> None:
    assert widths(build("logistic", (1, 8, 8), 10)()) == [(10, 64)]
    assert widths(build("mlp", (1, 28, 28), 10)()) == [(100, 784), (10, 100)]
    assert widths(build("mlp(hidden=(30, 20))", (5,), 2)()) == [(30, 5), (20, 30), (2, 20)]
    assert widths(build("mlp(30)", (5,), 2)()) == [(30, 5), (2, 30)]
    for shape in ((1, 28, 28), (1, 32, 32)):
        lenet = widths(build("lenet", shape, 10)())
        assert lenet == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]
    assert widths(build("lenet", (1, 8, 8), 10)())[2] == (120, 16 * 2 * 2)


@pytest.mark.parametrize("side", range(4, 40))
def test_lenet_takes_every_side_from_four(side: int) -> None:
    assert build("lenet", (2, side, 41), 3)()(torch.rand(2, 2, side, 41)).shape == (2, 3)


def test_names_say_what_each_is() -> None:
    assert list(names()) == ["logistic", "mlp", "lenet"]
    assert all(text.endswith(".") and "\n" not in text for text in names().values())


def test_every_call_makes_a_new_model_and_building_draws_nothing() -> None:
    before = torch.random.get_rng_state()
    make = build("lenet", (1, 8, 8), 3)
    assert torch.equal(before, torch.random.get_rng_state())
    first, second = make(), make()
    assert first is not second
    assert not torch.equal(first.head.weight, second.head.weight)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("mpl", "unknown model 'mpl'; did you mean 'mlp'?"),
        ("zzz", "unknown model 'zzz'; known: lenet, logistic, mlp."),
        ("mlp(hiden=3)", "unknown key of mlp 'hiden'; did you mean 'hidden'?"),
        ("mlp(shape=3)", "unknown key of mlp 'shape'"),
        ("mlp(hidden=())", "hidden must be one or more whole numbers >= 1, such as (100,), got ()"),
        ("mlp(hidden=(10, 0))", "hidden must be one or more whole numbers >= 1, such as (100,), got (10, 0)"),
        ("mlp(hidden='a')", "hidden must be one or more whole numbers >= 1, such as (100,), got 'a'"),
        ("mlp(1.5)", "hidden must be one or more whole numbers >= 1, such as (100,), got 1.5"),
        ("logistic(3)", "logistic takes no arguments, got 1"),
        ("lenet", "lenet needs pictures of shape (channels, height, width), at least 4 x 4, got (64,); use mlp"),
        (3, "model must be a name, a function or a torch module, got int"),
        ("a b:c", "expected a model function as \"module:function\", got 'a b:c'"),
        ("mine.py:", 'expected a model function as "module:function"'),
    ],
)
def test_refused_when_built(spec: object, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        build(spec, (64,), 3)
    assert sentence in str(error.value)


class TestGiven:
    def test_module_is_copied(self) -> None:
        module = nn.Linear(3, 2)
        before = module.weight.clone()
        make = build(module, (3,), 2)
        first, second = make(), make()
        assert torch.equal(first.weight, before)
        with torch.no_grad():
            first.weight.zero_()
        assert torch.equal(second.weight, before)
        assert torch.equal(module.weight, before)

    def test_functions_get_what_they_ask_for(self) -> None:
        assert build(lambda: nn.Linear(1, 2), (3,), 9)().weight.shape == (2, 1)
        assert build(lambda shape: nn.Linear(shape[0], 2), (3,), 9)().weight.shape == (2, 3)
        assert build(lambda *, classes, width=4: nn.Linear(width, classes), (3,), 9)().weight.shape == (9, 4)
        assert build(partial(nn.Linear, 1, 2), (3,), 9)().weight.shape == (2, 1)

    def test_a_class_is_a_function(self) -> None:
        assert build(Net, (3,), 9)().head.weight.shape == (9, 3)

    def test_refused(self) -> None:
        with pytest.raises(InputError, match="may ask for shape and classes only, but needs width; give them default"):
            build(lambda shape, width: nn.Linear(shape[0], width), (3,), 9)
        with pytest.raises(InputError, match="must return a torch module, got int"):
            build(lambda: 3, (3,), 9)()
        with pytest.raises(InputError, match="failed with ZeroDivisionError: division by zero"):
            build(lambda: 1 / 0, (3,), 9)()


class TestImported:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
        return tmp_path

    def test_from_the_current_folder(self, folder: Path) -> None:
        (folder / "own_net.py").write_text(
            "from torch import nn\n"
            "def make(shape, classes):\n    return nn.Linear(shape[0], classes)\n"
            "class Box:\n    make = staticmethod(make)\n"
            "number = 3\n"
        )
        assert build("own_net:make", (3,), 9)().weight.shape == (9, 3)
        assert build("own_net:Box.make", (3,), 9)().weight.shape == (9, 3)
        with pytest.raises(InputError, match=r"unknown function in 'own_net': 'mak'; did you mean 'make'\?"):
            build("own_net:mak", (3,), 9)
        with pytest.raises(InputError, match="model 'own_net:number' must name a function, got int"):
            build("own_net:number", (3,), 9)

    def test_from_a_package(self, folder: Path) -> None:
        (folder / "own_package").mkdir()
        (folder / "own_package" / "nets.py").write_text(
            "from torch import nn\ndef make():\n    return nn.Linear(1, 2)\n"
        )
        assert build("own_package.nets:make", (3,), 9)().weight.shape == (2, 1)

    @pytest.mark.parametrize(
        ("name", "code", "sentence"),
        [
            ("own_syntax", "def (", "cannot import 'own_syntax' for model 'own_syntax:make': SyntaxError: "),
            ("own_import", "import not_there", "ModuleNotFoundError: No module named 'not_there'"),
            ("own_error", "1 / 0", "ZeroDivisionError: division by zero"),
        ],
    )
    def test_import_errors_are_one_sentence(self, folder: Path, name: str, code: str, sentence: str) -> None:
        (folder / f"{name}.py").write_text(code)
        with pytest.raises(InputError) as error:
            build(f"{name}:make", (3,), 9)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    def test_no_such_module(self) -> None:
        with pytest.raises(InputError, match=r"cannot import 'own_nothing' .* No module named 'own_nothing'"):
            build("own_nothing:make", (3,), 9)
