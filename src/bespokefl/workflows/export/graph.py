"""The module that is exported: preprocessing, the model, and probabilities or values."""

import copy
import math

import torch
from torch import Tensor, nn

from bespokefl.data.tables import text
from bespokefl.workflows.export.inputs import Inputs


class ExportedModel(nn.Module):
    """Computes in float32. An example with a missing value that is not filled gets NaN."""

    def __init__(self, model: nn.Module, inputs: Inputs, *, classifies: bool) -> None:
        super().__init__()
        self.preprocessing = WordIds(inputs) if inputs.is_text else Numbers(inputs)
        self.model = copy.deepcopy(model).float()
        self.classifies, self.rejects = classifies, not inputs.is_text and not inputs.fills
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        prepared = self.preprocessing(x)
        outputs: Tensor = self.model(prepared)
        outputs = outputs.softmax(1) if self.classifies else outputs.reshape(-1, 1)
        if self.rejects:
            missing = prepared.isnan().flatten(1).any(1, keepdim=True)
            outputs = torch.where(missing, torch.full_like(outputs, math.nan), outputs)
        return outputs if self.classifies else outputs.reshape(-1)


class WordIds(nn.Module):
    """Replaces ids that the model does not know."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        assert inputs.tokens is not None
        self.tokens = inputs.tokens

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < self.tokens, x, torch.full_like(x, text.UNKNOWN))


class Numbers(nn.Module):
    """Encodes categories, fills missing values and scales; in float64, as `Preparation` does."""

    column: Tensor
    code: Tensor
    fill: Tensor
    offset: Tensor
    factor: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.changes, self.fills = inputs.constants is not None, inputs.fills
        self.has_categories = any(one is not None for one in inputs.code)
        if inputs.constants is None:
            return
        per_channel = (-1, 1, 1) if len(inputs.features.shape) == 3 else (-1,)  # an image has its channels first
        for name, values in zip(("fill", "offset", "factor"), inputs.constants, strict=True):
            self.register_buffer(name, torch.from_numpy(values).reshape(per_channel))
        if self.has_categories:
            code = [math.nan if one is None else float(one) for one in inputs.code]
            self.register_buffer("code", torch.tensor(code, dtype=torch.float64))
            self.register_buffer("column", torch.tensor(inputs.column))

    def forward(self, x: Tensor) -> Tensor:
        if not self.changes:
            return x
        values = x.double()
        if self.has_categories:
            values = values[:, self.column]
            is_number = self.code.isnan() | values.isnan()  # a missing category stays missing
            values = torch.where(is_number, values, (values == self.code).double())
        if self.fills:
            values = torch.where(values.isnan(), self.fill, values)
        return ((values - self.offset) * self.factor).float()
