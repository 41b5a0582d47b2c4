"""Int8 products as they are defined, and models that tests quantize."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.quantization import operators, quantizer

calls_made: list[str] = []
"""Operators that the reference kernels have computed."""


def exact_linear(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, n: int, *how: int
) -> Tensor:
    """A product without rounding of its input: only the weight is int8."""
    calls_made.append("int8_linear")
    weight = quantizer.dequantize(quantizer.unpack(packed, (n, how[0])), scale)
    return F.linear(x, weight, bias)


def quantized_rows(x: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric rows [m, k]: q as float, scale and zero point."""
    low, high = x.amin(1).clamp(max=0), x.amax(1).clamp(min=0)
    scale = (high - low) / levels
    inverse = torch.where(high > low, levels / (high - low), 0)
    zero = torch.round(-low * inverse)
    q = torch.round(x.double() * inverse[:, None].double() + zero[:, None].double())
    return q.clamp(0, levels), scale, zero


def linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    n: int,
    k: int,
    activation: int = 0,
) -> Tensor | None:
    if x.dtype != torch.float32 or type(x) is not Tensor:
        return None
    calls_made.append("int8_linear")
    with torch.no_grad():
        rows = x.reshape(-1, k)
        q, s, z = quantized_rows(rows, 255 if rows.shape[0] > 1 else 65535)
        w = quantizer.unpack(packed, (n, k)).double()
        acc = (q - z[:, None].double()) @ w.t()
        y = acc * (s[:, None] * scale).double()
        y = y if bias is None else y + bias.detach()
        y = y.relu() if activation else y
        return y.to(torch.float32).reshape(*x.shape[:-1], n)


class Made:
    """What the extension's int8 kernels have computed since the last ``clear()``."""

    def __init__(self) -> None:
        self._c = _host.load()
        self.clear()

    def _counted(self) -> list[int]:
        return [self._c.counters(op)[0] for op in operators.OPERATORS]

    def clear(self) -> None:
        self._before = self._counted()

    def _names(self) -> list[str]:
        pairs = zip(self._counted(), self._before, strict=True)
        counts = [now - before for now, before in pairs]
        named = zip(operators.OPERATORS, counts, strict=True)
        return [op for op, n in named for _ in range(n)]

    def __len__(self) -> int:
        return len(self._names())

    def __eq__(self, other: object) -> bool:
        return self._names() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._names())


@contextmanager
def kernels() -> Iterator[Made]:
    """The switch is on; what the kernels compute is counted."""
    with ptac.enable_model_quantization() as handle:
        assert handle, handle.reason
        yield Made()


def file_of(model: nn.Module, compress: bool = True) -> bytes:
    """What ``save_quantized`` writes."""
    stream = io.BytesIO()
    ptac.save_quantized(model, stream, compress)
    return stream.getvalue()


def sqnr_db(stock: Tensor, ours: Tensor) -> float:
    """Signal to noise of ours."""
    signal = stock.detach().double().square().sum()
    noise = (ours - stock).detach().double().square().sum()
    return quantizer.sqnr_db(float(signal), float(noise))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)
    ).eval()


class ConvNet(nn.Module):
    """Convolutions of several kinds, with norms between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 16, 3, stride=2, groups=2, bias=False)
        self.point = nn.Conv2d(16, 24, 1, padding="valid")
        self.same = nn.Conv2d(24, 8, 3, dilation=2, padding="same")
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.same(F.relu(self.point(self.grouped(x))))
        return self.head(x.mean((2, 3)))


class TiedLanguageModel(nn.Module):
    """An embedding whose rows are also the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        return self.head(x)


def language_model() -> TiedLanguageModel:
    torch.manual_seed(0)
    return TiedLanguageModel().eval()


def conv_net() -> ConvNet:
    torch.manual_seed(0)
    return ConvNet().eval()


TOKENS = torch.arange(36).reshape(4, 9) % 50
IMAGES = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(16, 20, generator=torch.Generator().manual_seed(2))

MODELS = {
    "mlp": (mlp, ROWS),
    "conv": (conv_net, IMAGES),
    "tied": (language_model, TOKENS),
}

CASES = list(MODELS)


def quantized(name: str, **options: Any) -> tuple[nn.Module, Tensor]:
    make, x = MODELS[name]
    return ptac.quantize_model(make(), method="int8", **options), x


def another(name: str) -> nn.Module:
    """A float model with other numbers."""
    model = MODELS[name][0]()
    for p in model.parameters():
        p.add_(0.1)
    return model
