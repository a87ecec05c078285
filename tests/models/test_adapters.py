"""Low-rank adapters: by hand, inside torch's transformer, and what is trained of a frozen model."""

import copy

import pytest
import torch
from torch import nn

from bespokefl.core.blocks.matching import matching
from bespokefl.core.errors import InputError
from bespokefl.core.method import Method
from bespokefl.core.nn import probe
from bespokefl.core.task import Task
from bespokefl.methods import Ditto, FedPer, FedSALoRA, SelfFL
from bespokefl.models import lora
from bespokefl.models.adapters import LoRALinear
from tests.federations import apart, federation, mlp, run


class Encoder(nn.Module):
    """Two layers of torch's transformer on numbers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def test_a_layer_by_hand() -> None:
    layer, x = nn.Linear(5, 4), torch.randn(7, 5)
    adapted = LoRALinear(layer, rank=2, alpha=6.0)
    assert torch.equal(adapted(x), layer(x))  # B is zero
    with torch.no_grad():
        adapted.lora_B.copy_(torch.randn(4, 2))
    expected = x @ (layer.weight + 3.0 * adapted.lora_B @ adapted.lora_A).T + layer.bias
    torch.testing.assert_close(adapted(x), expected)
    bound = (1 / 5) ** 0.5  # U(−1/√inputs, 1/√inputs), as for torch's linear layers
    assert adapted.lora_A.abs().max() <= bound and adapted.lora_A.shape == (2, 5)


def test_what_is_trained() -> None:
    module = lora(Encoder(), "layers.*.linear1", rank=2)
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    adapters = {f"layers.{k}.linear1.lora_{which}" for k in (0, 1) for which in "AB"}
    assert trained == adapters | {"head.weight", "head.bias"}
    assert set(Encoder().state_dict()) < set(module.state_dict())  # pre-trained weights keep their names
    layout = Task(lambda: lora(Encoder(), "layers.*.linear1", rank=2)).layout
    assert set(matching(layout, "adapters")) == adapters and set(layout.head) == {"head.weight", "head.bias"}
    whole = lora(Encoder(), unfreeze=())
    assert sum(isinstance(one, LoRALinear) for one in whole.modules()) == 5 and not whole.head.weight.requires_grad


def test_torchs_fast_path_does_not_skip_adapters() -> None:
    """In evaluation, torch's encoder layers read the weights of their linear layers instead of calling these."""
    module, x = lora(Encoder(), "layers.*").eval(), torch.randn(4, 5, 8)
    with torch.no_grad():
        before = module(x)
        torch.testing.assert_close(before, Encoder().eval()(x), rtol=1e-4, atol=1e-5)
        module.layers[0].linear1.lora_B.fill_(0.5)
        after = module(x)
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after, module.train()(x), rtol=1e-4, atol=1e-5)


def test_stacked_rows_share_the_frozen_weights() -> None:
    x, y = torch.randn(3, 5, 8), torch.tensor([0, 1, 2])
    task = Task(lambda: lora(Encoder(), "layers.*", rank=2))
    probe.check(task, x, y, 3)
    assert probe.why_not_stacked(task, x, y) is None
    frozen = task.module.layers[0].linear1.weight
    assert task._quick.layers[0].linear1.weight is frozen
    assert task.layout.width < 0.5 * sum(one.numel() for one in task.module.parameters())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layers": "decoder.*"}, r"no linear layer matches decoder\.\*; the model has layers\.0\.linear1"),
        ({"unfreeze": "classifier"}, "the model has no layer classifier to unfreeze; it has"),
        ({"rank": 0}, "rank must be an integer >= 1, got 0"),
        ({"layers": "head"}, "no linear layer matches head"),
    ],
)
def test_what_does_not_fit(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        lora(copy.deepcopy(Encoder()), **options)


@pytest.mark.parametrize("method", [FedPer(), Ditto(), SelfFL(max_steps=3), FedSALoRA()], ids=lambda one: one.name)
def test_methods_on_adapters(method: Method) -> None:
    """Stacked, plain and in torch's own loop; what is frozen is neither trained nor sent."""
    data, factory = federation(dtype=torch.float64), lambda: lora(mlp(), "0", rank=2, unfreeze="2")
    made, found = run(method, data, factory=factory, chunk=3)
    for options in ({"chunk": 1}, {"reference": True}):
        _, expected = run(method, data, factory=factory, **options)
        assert apart(found.personal_rows, expected.personal_rows) < 1e-10
        assert found.communication == expected.communication
    assert made.task.layout.names == ("0.lora_A", "0.lora_B", "2.weight", "2.bias")
    frozen = dict(Task(factory, dtype=torch.float64).module.named_parameters())
    assert all(torch.equal(made.task.module.get_parameter(name), frozen[name]) for name in ("0.weight", "0.bias"))
    assert apart(found.personal_rows, made.task.start) > 1e-2
