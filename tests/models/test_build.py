"""Models are found by name, in the user's own module, or given; each call makes a new one."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from bespokefl import models
from bespokefl.core.errors import InputError
from bespokefl.core.nn import probe
from bespokefl.core.task import Task
from bespokefl.models import MODELS, build, names

SHAPES = [(64,), (8, 8), (1, 8, 8), (28, 28), (1, 28, 28), (3, 32, 32), (3, 12, 40)]
SERIES, TEXT, TABLE = (20, 3), (12,), (64,)
TOKENS = 30
FITTING = {  # shapes of examples that a model takes
    "logistic": SHAPES,
    "mlp": SHAPES,
    "lenet": SHAPES[1:],
    "cifar-cnn": [(16, 16), (28, 28), (1, 28, 28), (3, 32, 32)],
    "pfedvem-cnn": [(16, 16), (28, 28), (1, 28, 28), (3, 32, 32)],
    "deep-cnn": [(4, 4), *SHAPES[1:]],
    "resnet8": SHAPES[1:],
    "resnet20": [(8, 8), (3, 32, 32)],
    "cnn1d": [TABLE, SERIES, (2, 1)],
    "lstm": [TEXT, (1,)],
    "bag": [TEXT, (1,)],
}
CASES = [(name, shape) for name, shapes in FITTING.items() for shape in shapes]


def tokens(name: str) -> int | None:
    return TOKENS if name in models.TEXT else None


def examples(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if name in models.TEXT:
        return torch.randint(0, TOKENS, shape, generator=generator)
    return torch.rand(shape, generator=generator)


class Net(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int = 2) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0], classes)


def test_every_model_is_tried() -> None:
    assert list(FITTING) == list(MODELS)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_shapes(name: str, shape: tuple[int, ...]) -> None:
    module = build(name, shape, 7, tokens(name))()
    batch = examples(name, 5, *shape)
    assert module(batch).shape == (5, 7)
    assert module(batch[:1]).shape == (1, 7)
    assert build(name, shape, 1, tokens(name))()(batch).shape == (5, 1)
    assert {key.split(".")[0] for key in module.state_dict()} == ({"head"} if name == "logistic" else {"base", "head"})
    assert isinstance(module.head, nn.Linear)
    assert list(module.state_dict())[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lstm"])
def test_vmap_over_many_models(name: str) -> None:
    """The models of a cohort, stacked, give what each gives alone."""
    shape = FITTING[name][1]
    modules = [build(name, shape, 3, tokens(name))().eval() for _ in range(4)]  # running statistics stay as they are
    stacked, _ = torch.func.stack_module_state(modules)
    x = examples(name, 4, 6, *shape)
    together = torch.vmap(lambda weights, batch: torch.func.functional_call(modules[0], weights, batch))(stacked, x)
    for module, batch, output in zip(modules, x, together, strict=True):
        assert torch.allclose(module(batch), output, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_takes_every_model(name: str) -> None:
    """Stacked where vmap can; torch's own LSTM cannot be, and is said to run plain."""
    task = Task(build(name, FITTING[name][0], 3, tokens(name)))
    x, y = examples(name, 3, *FITTING[name][0]), torch.tensor([0, 1, 2])
    probe.check(task, x, y, 3)
    obstacle = probe.why_not_stacked(task, x, y)
    assert (obstacle or "").startswith("vmap failed") if name == "lstm" else obstacle is None
    assert set(task.layout.head) == {"head.weight", "head.bias"}


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
    # 32 − 4 = 28, pooled 14, − 4 = 10, pooled 5: 16 · 5 · 5 = 400
    rest = [(84, 120), (10, 84)]
    assert widths(build("cifar-cnn", (3, 32, 32), 10)()) == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), *rest]
    assert widths(build("pfedvem-cnn", (3, 32, 32), 10)()) == [(16, 3, 5, 5), (32, 16, 5, 5), (120, 800), *rest]
    deep = [(32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (256, 128, 3, 3), (100, 256, 3, 3), (20, 100)]
    assert widths(build("deep-cnn", (3, 32, 32), 20)()) == deep
    cnn1d = build("cnn1d(width=8)", (20, 3), 4)()
    assert [tuple(one.shape) for one in cnn1d.parameters() if one.dim() > 1] == [(8, 3, 5), (16, 8, 5), (4, 16)]
    assert sum(one.numel() for one in build("bag(5, 6)", (9,), 2, 30)().parameters()) == 30 * 5 + 6 * 6 + 2 * 7
    lstm = build("lstm(300, 256, 2)", (25,), 2, 1000)()
    both = 4 * 256 * (300 + 256 + 2) + 4 * 256 * (256 + 256 + 2)  # four gates, two biases each
    assert sum(one.numel() for one in lstm.parameters()) == 1000 * 300 + both + 2 * 257


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnets_have_the_papers_size(norm: str) -> None:
    """6n + 2 layers with weights; ResNet-20 has .27 million parameters, for either norm."""
    for name, layers in (("resnet8", 8), ("resnet20", 20)):
        module = build(f'{name}(norm="{norm}")', (3, 32, 32), 10)()
        assert len(widths(module)) == layers
        assert any(isinstance(one, nn.BatchNorm2d) for one in module.modules()) == (norm == "batch")
        assert module.base(torch.rand(2, 3, 32, 32)).shape == (2, 64, 8, 8)
    convolutions = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert sum(one.numel() for one in module.parameters()) == convolutions + norms + 64 * 10 + 10 == 269_722


def test_deep_cnn_leaves_three_by_three() -> None:
    assert build("deep-cnn", (3, 32, 32), 20)().base(torch.rand(1, 3, 32, 32)).shape == (1, 100, 3, 3)


@pytest.mark.parametrize("name", models.TEXT)
def test_filling_at_the_end_of_a_text_does_not_matter(name: str) -> None:
    module = build(name, (6,), 3, TOKENS)()
    short, long = torch.tensor([[5, 9, 0]]), torch.tensor([[5, 9, 0, 0, 0, 0]])
    assert torch.allclose(module(short), module(long), atol=1e-6)
    assert not torch.allclose(module(short), module(torch.tensor([[5, 8, 0]])), atol=1e-3)
    assert torch.isfinite(module(torch.zeros(2, 6, dtype=torch.int64))).all()


def test_order_of_words() -> None:
    bag, lstm = (build(name, (2,), 3, TOKENS)() for name in ("bag", "lstm"))
    there, back = torch.tensor([[5, 9]]), torch.tensor([[9, 5]])
    assert torch.allclose(bag(there), bag(back), atol=1e-6)
    assert not torch.allclose(lstm(there), lstm(back), atol=1e-4)


def test_a_bag_is_the_mean_of_its_words() -> None:
    bag = build("bag", (3,), 3, TOKENS)()
    embedding, hidden = bag.base["embedding"].weight, bag.base["hidden"]
    expected = bag.head(hidden((embedding[5] + embedding[9]) / 2).relu())
    assert torch.allclose(bag(torch.tensor([[5, 9, 0]]))[0], expected, atol=1e-6)


def test_cnn1d_reads_time_first() -> None:
    """Moved in time, a series far from its ends gives the same; with channels exchanged, another."""
    module = build("cnn1d", (40, 2), 3)()
    series = torch.zeros(1, 40, 2)
    series[0, 10:14] = torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    assert torch.allclose(module(series), module(series.roll(8, dims=1)), atol=1e-6)
    assert not torch.allclose(module(series), module(series.flip(2)), atol=1e-4)


def test_hyphens_and_underscores() -> None:
    assert type(build("cifar_cnn", (3, 32, 32), 2)()) is type(build("cifar-cnn()", (3, 32, 32), 2)())


@pytest.mark.parametrize("side", range(4, 40))
def test_lenet_takes_every_side_from_four(side: int) -> None:
    assert build("lenet", (2, side, 41), 3)()(torch.rand(2, 2, side, 41)).shape == (2, 3)


def test_names_say_what_each_is() -> None:
    assert list(names()) == list(MODELS)
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
        (
            "zzz",
            "unknown model 'zzz'; known: bag, cifar-cnn, cnn1d, deep-cnn, lenet, logistic, lstm, mlp, pfedvem-cnn, "
            "resnet20, resnet8.",
        ),
        ("mlp(hiden=3)", "unknown key of mlp 'hiden'; did you mean 'hidden'?"),
        ("mlp(shape=3)", "unknown key of mlp 'shape'"),
        ("mlp(hidden=())", "hidden must be one or more integers >= 1, such as (100,), got ()"),
        ("mlp(hidden=(10, 0))", "hidden must be one or more integers >= 1, such as (100,), got (10, 0)"),
        ("mlp(hidden='a')", "hidden must be one or more integers >= 1, such as (100,), got 'a'"),
        ("mlp(1.5)", "hidden must be one or more integers >= 1, such as (100,), got 1.5"),
        ("logistic(3)", "logistic takes no arguments, got 1"),
        ("lenet", "lenet needs images of shape (channels, height, width), at least 4 x 4, got (64,); use mlp"),
        ("cifar-cn", "unknown model 'cifar-cn'; did you mean 'cifar-cnn'?"),
        ("cifar-cnn", "cifar-cnn needs images of shape (channels, height, width), at least 16 x 16, got (64,); use"),
        ("pfedvem-cnn", "pfedvem-cnn needs images of shape (channels, height, width), at least 16 x 16, got (64,)"),
        ("resnet8", "resnet8 needs images of shape (channels, height, width), at least 8 x 8, got (64,); use mlp"),
        ('resnet8(norm="layer")', "unknown norm 'layer'; known: batch, group."),
        ("deep-cnn", "deep-cnn needs images of shape (channels, height, width), at least 4 x 4, got (64,); use mlp"),
        ("lstm", "lstm needs text, word ids of shape (length,), got examples of shape (64,) that are not text"),
        ("bag", "bag needs text, word ids of shape (length,), got examples of shape (64,) that are not text"),
        ("bag(tokens=0)", "tokens must be an integer >= 1, got 0"),
        ("bag(tokens=9, hidden=0)", "hidden must be an integer >= 1, got 0"),
        ("lstm(tokens=9, layers=1.5)", "layers must be an integer >= 1, got 1.5"),
        ("cnn1d(width='a')", "width must be an integer >= 1, got 'a'"),
        (3, "model must be a name, a function or a torch module, got int"),
        ("a b:c", "expected a model function as \"module:function\", got 'a b:c'"),
        ("mine.py:", 'expected a model function as "module:function"'),
    ],
)
def test_refused_when_built(spec: object, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        build(spec, (64,), 3)
    assert sentence in str(error.value)


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_models_of_quantities_refuse_text(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} needs numeric features, but these examples are word ids"):
        build(name, (12,), 3, TOKENS)


def test_models_of_series_and_text_refuse_pictures() -> None:
    with pytest.raises(InputError, match=r"cnn1d needs series of shape \(time, channel\), .* got \(3, 32, 32\)"):
        build("cnn1d", (3, 32, 32), 3)
    with pytest.raises(InputError, match=r"lstm needs text, .* got examples of shape \(3, 32, 32\)"):
        build("lstm", (3, 32, 32), 3, TOKENS)


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

    def test_tokens_are_offered_where_there_are_any(self) -> None:
        assert build(lambda tokens: nn.Embedding(tokens, 2), (3,), 9, 30)().weight.shape == (30, 2)
        assert build(lambda shape: nn.Linear(shape[0], 2), (3,), 9, 30)().weight.shape == (2, 3)
        assert build(lambda tokens=None: nn.Linear(1, 2 if tokens is None else 3), (3,), 9)().weight.shape == (2, 1)
        with pytest.raises(InputError, match="requires tokens, but the data are not text; use another model"):
            build(lambda shape, tokens: nn.Embedding(tokens, 2), (3,), 9)

    def test_a_class_is_a_function(self) -> None:
        assert build(Net, (3,), 9)().head.weight.shape == (9, 3)

    def test_refused(self) -> None:
        with pytest.raises(InputError, match="may require only shape, classes and tokens, but needs width; give"):
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


class TestInit:
    @pytest.mark.parametrize("name", ["mlp", "lenet", "cifar-cnn", "pfedvem-cnn", "deep-cnn", "resnet8"])
    def test_glorots_and_hes_variances(self, name: str) -> None:
        """Glorot: var = 2 / (fan in + fan out); He: var = 2 / fan in; biases are zero. Torch's own draw is smaller."""
        for init in ("glorot", "he"):
            torch.manual_seed(0)
            for layer in build(f'{name}(init="{init}")', (3, 32, 32), 10)().modules():
                if not isinstance(layer, nn.Linear | nn.Conv2d):
                    continue
                outs, ins = layer.weight.shape[0], layer.weight[0].numel()
                window = layer.weight[0, 0].numel()
                expected = 2 / (ins + outs * window) if init == "glorot" else 2 / ins
                num = layer.weight.numel()
                assert layer.weight.var().item() == pytest.approx(expected, rel=6 * (2 / num) ** 0.5)
                assert layer.bias is None or not layer.bias.any()

    def test_he_for_convolutions_and_glorot_for_linear_layers(self) -> None:
        torch.manual_seed(0)
        layers = build('lenet(init="he-glorot")', (3, 32, 32), 10)().modules()
        for layer in (one for one in layers if isinstance(one, nn.Linear | nn.Conv2d)):
            outs, ins = layer.weight.shape[0], layer.weight[0].numel()
            bound = (6 / (ins + outs)) ** 0.5 if isinstance(layer, nn.Linear) else (6 / ins) ** 0.5  # both uniform
            assert 0.95 * bound < layer.weight.abs().max().item() <= bound
            assert not layer.bias.any()

    def test_torchs_own_is_the_default(self) -> None:
        torch.manual_seed(0)
        plain = build("mlp", (4,), 2)().state_dict()
        torch.manual_seed(0)
        named = build('mlp(init="torch")', (4,), 2)().state_dict()
        assert all(torch.equal(plain[key], named[key]) for key in plain)

    def test_unknown(self) -> None:
        with pytest.raises(InputError, match=r"unknown init 'glorott'; did you mean 'glorot'\?"):
            build('mlp(init="glorott")', (4,), 2)


@pytest.mark.parametrize("spec", [f"mlp(hidden=({'1,' * 5000}))", "lstm(layers=1000000000)"])
def test_absurdly_many_layers(spec: str) -> None:
    with pytest.raises(InputError, match=r"model '(mlp|lstm)\(.* has [0-9,]+ layers; give at most 500"):
        build(spec, (8,), 2, tokens=5 if spec.startswith("lstm") else None)
