"""Whole models, training and inference: eager, ours, and torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.rows import Row, failed, named, row
from benchmarks.gpu.timing import Call, Setting, alternate, ours, stock
from pai_torchacc import _host
from pai_torchacc.bench.measure_cuda import is_emulated
from pai_torchacc.bench.workloads import ResNet18, SimpleCNN

SECTION = "model"

Batch = tuple[Tensor, Tensor]

COMPILES_IN_S = 60
"""What torch.compile takes for a model, about; it is left out with less time left."""


@dataclass(frozen=True)
class Model:
    """What makes a model and its batch, here and for the emulation."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    make_tiny: Callable[[], nn.Module]
    batch_tiny: Callable[[], Batch]
    optimizer: Callable[..., torch.optim.Optimizer]
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32)


class Bottleneck(nn.Module):
    """A block of ResNet-50's."""

    def __init__(self, n_in: int, width: int, stride: int):
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.bn3, self.relu = nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Three convolutions beside the shortcut."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet50(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> nn.Module:
    """Of torchvision's sizes; fewer blocks and channels where they are given."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width),
        nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    n_in = width
    for i, n in enumerate(blocks):
        for j in range(n):
            stride = 2 if i and not j else 1
            layers.append(Bottleneck(n_in, width << i, stride))
            n_in = 4 * (width << i)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, 1000)
    return nn.Sequential(*layers, *head)


class Encoder(nn.Module):
    """Torch's own Transformer encoder under a classifier."""

    def __init__(self, width: int, heads: int, layers: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify sequences."""
        return self.head(self.encoder(x).mean(1))


class Block(nn.Module):
    """Of a GPT: pre-norm, causal attention, GELU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        act = nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), act, nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Both halves, each beside what it was given."""
        n, t, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """GPT-2's shape, with a head of its own."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, n: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(n)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions)))


def images(n: int, channels: int, size: int, classes: int) -> Callable[[], Batch]:
    """Noise, and labels."""
    return lambda: (torch.randn(n, channels, size, size), torch.randint(classes, (n,)))


def _sequences(n: int, length: int, width: int) -> Callable[[], Batch]:
    return lambda: (torch.randn(n, length, width), torch.randint(10, (n,)))


def _tokens(n: int, length: int, vocabulary: int) -> Callable[[], Batch]:
    return lambda: tuple(torch.randint(vocabulary, (n, length)) for _ in range(2))


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)


def _tiny_resnet() -> nn.Module:
    return resnet50((1, 1), 4)


MODELS = (
    Model(
        "the article's SimpleCNN, batch 64", SimpleCNN, images(64, 1, 28, 10),
        SimpleCNN, images(2, 1, 28, 10), _sgd, (torch.float32, torch.bfloat16),
    ),
    Model(
        "GPT-2 small, 8 x 1024 tokens", lambda: GPT(50304, 1024, 768, 12, 12),
        _tokens(8, 1024, 50304), lambda: GPT(17, 8, 16, 2, 1), _tokens(2, 8, 17),
        _adamw,
    ),
    Model(
        "Transformer encoder of 12 x 768, 16 x 512", lambda: Encoder(768, 12, 12),
        _sequences(16, 512, 768), lambda: Encoder(16, 2, 1), _sequences(2, 5, 16),
        _adamw,
    ),
    Model(
        "ResNet-50, batch 64", resnet50, images(64, 3, 224, 1000),
        _tiny_resnet, images(2, 3, 32, 1000), _sgd,
    ),
    Model(
        "ResNet-18, batch 128", ResNet18, images(128, 3, 224, 1000),
        _tiny_resnet, images(2, 3, 32, 1000), _sgd,
    ),
)  # fmt: skip


def rows(setting: Setting) -> Iterator[Row]:
    """Each model in its first precision, then in its second, while time is left."""
    for i in range(1 if is_emulated() else 2):
        for model in MODELS:
            if setting.budget.left < 0:
                return
            yield from measure(model, model.dtypes[i], setting)


def compiled(setting: Setting) -> Iterator[Row]:
    """The same beside torch.compile, as many as there is time for."""
    for model in MODELS:
        if setting.budget.left < COMPILES_IN_S or is_emulated():
            return
        yield from measure(model, model.dtypes[0], setting, against_compile=True)


def measure(
    model: Model, dtype: torch.dtype, setting: Setting, against_compile: bool = False
) -> Iterator[Row]:
    """Rows of training, then of inference."""
    for way, make in (("training", _training), ("inference", _inference)):
        name = f"{model.name}, {way}"
        try:
            variants = {
                "stock": (stock, make(model, dtype)),
                "ours": (ours, make(model, dtype)),
            }
            if against_compile:
                variants["compile"] = stock, make(model, dtype, torch.compile)
            found = _served(variants["ours"][1])
            timings = alternate(variants, setting)
            for variant, timing in timings.items():
                yield row(
                    (SECTION, name, dtype, variant),
                    found if variant == "ours" else "",
                    timing, timings["stock"], 0, 0, setting,
                )  # fmt: skip
        except RuntimeError as error:
            yield failed(SECTION, name, named(dtype), error)


def _served(call: Call) -> str:
    """The operators that we served, with how many calls of a step."""
    c = _host.load()
    ours()
    call()
    before = {name: c.counters(name)[0] for name, *_ in c.operators()}
    call()
    counts = {name: c.counters(name)[0] - n for name, n in before.items()}
    return " ".join(f"{name}:{n}" for name, n in counts.items() if n) or "none"


def made(model: Model) -> tuple[nn.Module, Tensor, Tensor]:
    """The model and a batch on the device, the same each time."""
    torch.manual_seed(0)
    tiny = is_emulated()
    with torch.device("cuda"):
        net = (model.make_tiny if tiny else model.make)()
        return net, *(model.batch_tiny if tiny else model.batch)()


def _autocast(dtype: torch.dtype) -> Any:
    is_whole = dtype == torch.float32
    return nullcontext() if is_whole else torch.autocast("cuda", dtype)


def _training(
    model: Model, dtype: torch.dtype, wrap: Callable[[Any], Any] = lambda net: net
) -> Call:
    net, x, y = made(model)
    optimizer, run = model.optimizer(net.parameters()), wrap(net)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with _autocast(dtype):
            scores = run(x)
            loss = F.cross_entropy(scores.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()

    return step


def _inference(
    model: Model, dtype: torch.dtype, wrap: Callable[[Any], Any] = lambda net: net
) -> Call:
    net, x, _ = made(model)
    run = wrap(net.eval())

    def call() -> Tensor:
        with torch.no_grad(), _autocast(dtype):
            return run(x)

    return call
