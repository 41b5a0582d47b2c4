"""The workloads that all figures speak of, defined once.

float32, torch's default initialisation after ``manual_seed(0)``, synthetic inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _classification(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), y.flatten())


@dataclass
class Task:
    """A workload ready to run: a model, its optimizer, and a source of batches."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    batches: Iterator[tuple[Tensor, Tensor]]
    criterion: Callable[[Tensor, Tensor], Tensor] = _classification

    def step(self) -> Tensor:
        """What the workload does over and over: train, else infer."""
        return self.train_step() if self.optimizer else self.infer()

    def train_step(self) -> Tensor:
        """Forward, backward, update; the loss."""
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def infer(self) -> Tensor:
        """Forward without gradients, in the mode that the model is in."""
        x, _ = next(self.batches)
        with torch.no_grad():
            return self.model(x)


@dataclass(frozen=True)
class Workload:
    """A named recipe for a :class:`Task`."""

    name: str
    about: str
    make: Callable[..., Task]
    trains: bool = True

    def task(self, **optimizer_options: Any) -> Task:
        """Build it anew; options such as ``fused=True`` go to the optimizer."""
        torch.manual_seed(0)
        return self.make(**optimizer_options)


def _forever(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield x, y


def _classes(n: int, *shape: int) -> Tensor:
    return torch.randint(0, n, shape)


class SimpleCNN(nn.Module):
    """The article's network: two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify [N, 1, 28, 28] images into [N, 10] scores."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc2(torch.relu(self.fc1(x)))


def _simple_cnn(**options: Any) -> Task:
    model = SimpleCNN()
    x, y = torch.randn(64, 1, 28, 28), _classes(10, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    return Task(model, optimizer, _forever(x, y))


def _w1(**options: Any) -> Task:
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    x, y = torch.randn(64, 1, 28, 28), _classes(10, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)
    return Task(model, optimizer, _forever(x, y))


def _l10(**options: Any) -> Task:
    model = nn.Linear(1000, 10)
    x, y = torch.randn(32, 1000), _classes(10, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    return Task(model, optimizer, _forever(x, y))


def _mlp(*widths: int, **options: Any) -> Task:
    """Linear layers of these widths with ReLU between, Adam, batch 64."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    x, y = torch.randn(64, widths[0]), _classes(widths[-1], 64)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    return Task(model, optimizer, _forever(x, y))


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


def _w4(**options: Any) -> Task:
    model = _Encoder()
    x, y = torch.randn(8, 128, 256), _classes(10, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, **options)
    return Task(model, optimizer, _forever(x, y))


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _eager_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention written out."""
    t = q.size(-2)
    mask = torch.full((t, t), float("-inf")).triu(1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return torch.softmax(scores + mask, -1) @ v


class _SelfAttention(nn.Module):
    def __init__(
        self,
        width: int,
        heads: int,
        attention: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        attended = self.attention(q, k, v)
        return self.out(attended.transpose(1, 2).reshape(n, t, width))


class _Block(nn.Module):
    """A pre-norm transformer block, cut into modules as nanoGPT's is."""

    def __init__(
        self,
        width: int,
        heads: int,
        forward_width: int,
        attention: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _SelfAttention(width, heads, attention)
        self.up, self.down = (
            nn.Linear(width, forward_width),
            nn.Linear(forward_width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class _GPT(nn.Module):
    def __init__(self, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(65, 256), nn.Embedding(128, 256)
        self.blocks = nn.ModuleList(_Block(256, 4, 1024, attention) for _ in range(4))
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 65, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _gpt_task(
    batches: Iterator[tuple[Tensor, Tensor]],
    options: Any,
    attention: Callable[[Tensor, Tensor, Tensor], Tensor] = _sdpa,
) -> Task:
    model = _GPT(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, **options)
    return Task(model, optimizer, batches)


def _w4g(**options: Any) -> Task:
    return _gpt_task(_forever(_classes(65, 8, 128), _classes(65, 8, 128)), options)


def _w4ge(**options: Any) -> Task:
    batches = _forever(_classes(65, 8, 128), _classes(65, 8, 128))
    return _gpt_task(batches, options, _eager_attention)


def _w4gv(**options: Any) -> Task:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        random = torch.Generator().manual_seed(0)
        while True:
            t = int(torch.randint(32, 129, (), generator=random))
            yield (
                torch.randint(0, 65, (8, t), generator=random),
                torch.randint(0, 65, (8, t), generator=random),
            )

    return _gpt_task(batches(), options)


class _BasicBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)
        self.shortcut = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


_RESNET_WIDTHS = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
"""Channels in, channels out and stride of each pair of blocks."""


def _resnet18(stem: nn.Module, n_classes: int) -> nn.Sequential:
    blocks = [
        block
        for n_in, n_out, stride in _RESNET_WIDTHS
        for block in (_BasicBlock(n_in, n_out, stride), _BasicBlock(n_out, n_out, 1))
    ]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))
    return nn.Sequential(stem, *blocks, *head)


def _w5(**options: Any) -> Task:
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    )
    model = _resnet18(stem, 10)
    x, y = torch.randn(32, 3, 32, 32), _classes(10, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)
    return Task(model, optimizer, _forever(x, y))


def _resnet18_224(**options: Any) -> Task:
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    model = _resnet18(stem, 1000)
    x, y = torch.randn(4, 3, 224, 224), _classes(1000, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)
    return Task(model, optimizer, _forever(x, y))


class _ResidualBlock(nn.Module):
    """A BasicBlock, cut into modules and called as torchvision's is."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 for 224x224 images in torchvision's modules, names and initialisation.

    Running statistics are those of four random images, so that batch normalisation
    has something to do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for i, (n_in, n_out, stride) in enumerate(_RESNET_WIDTHS, 1):
            blocks = (
                _ResidualBlock(n_in, n_out, stride),
                _ResidualBlock(n_out, n_out, 1),
            )
            self.add_module(f"layer{i}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)
        norms = []
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.BatchNorm2d):
                norms.append(module)
                module.momentum = 1.0
        with torch.no_grad():
            self(torch.randn(4, 3, 224, 224))
        for norm in norms:
            norm.momentum = 0.1

    def forward(self, x: Tensor) -> Tensor:
        """Classify [N, 3, 224, 224] images into [N, 1000] scores."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class _BertLayer(nn.Module):
    """A post-norm layer with separate projections, as Hugging Face's BERT has it."""

    def __init__(self, width: int, heads: int, forward_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.attention_output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.intermediate = nn.Linear(width, forward_width)
        self.activation = nn.GELU()
        self.output = nn.Linear(forward_width, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (
            projection(x).view(n, t, self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v)
        attended = attended.transpose(1, 2).reshape(n, t, width)
        x = self.attention_norm(self.attention_output(attended) + x)
        return self.output_norm(self.output(self.activation(self.intermediate(x))) + x)


class BertSmall(nn.Module):
    """BERT-small: 4 layers of 512, 8 heads, 30522 tokens; normal(0, 0.02) weights."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(30522, 512, padding_idx=0)
        self.position_embeddings = nn.Embedding(512, 512)
        self.token_type_embeddings = nn.Embedding(2, 512)
        self.norm = nn.LayerNorm(512, eps=1e-12)
        self.layers = nn.ModuleList(_BertLayer(512, 8, 2048) for _ in range(4))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Turn [N, T] tokens into the last layer's [N, T, 512] hidden states."""
        positions = torch.arange(tokens.size(1))
        x = self.word_embeddings(tokens) + self.position_embeddings(positions)
        x = self.norm(x + self.token_type_embeddings(torch.zeros_like(tokens)))
        for layer in self.layers:
            x = layer(x)
        return x


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _w6(**options: Any) -> Task:
    model = _LSTM()
    x, y = torch.randn(32, 32, 64), _classes(10, 32)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    return Task(model, optimizer, _forever(x, y))


def _vgg(**options: Any) -> Task:
    layers: list[nn.Module] = []
    n_in = 3
    for n_out in (64, 64, 0, 128, 128, 0, 256, 256, 0):
        if n_out:
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU()]
            n_in = n_out
        else:
            layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 10))
    x, y = torch.randn(32, 3, 32, 32), _classes(10, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **options)
    return Task(model, optimizer, _forever(x, y))


def _pair(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(n_out, n_out, 3, padding=1),
        nn.ReLU(),
    )


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = (
            _pair(16, 16),
            _pair(16, 32),
            _pair(32, 64),
        )
        self.up2, self.up1 = _pair(64 + 32, 32), _pair(32 + 16, 16)

    def forward(self, x: Tensor) -> Tensor:
        at1 = self.down1(x)
        at2 = self.down2(F.max_pool2d(at1, 2))
        x = self.bottom(F.max_pool2d(at2, 2))
        x = self.up2(torch.cat((F.interpolate(x, scale_factor=2), at2), 1))
        return self.up1(torch.cat((F.interpolate(x, scale_factor=2), at1), 1))


def _un(**options: Any) -> Task:
    model = _UNet()
    x, y = torch.randn(1, 16, 512, 512), torch.randn(1, 16, 512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    return Task(model, optimizer, _forever(x, y), F.mse_loss)


class _Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.relu(x * 2))


def _ew() -> Task:
    x = torch.randn(64 << 18)
    return Task(_Chain(), None, _forever(x, x))


_w3 = partial(_mlp, 784, 512, 512, 10)
_mlp64 = partial(_mlp, 64, 1024, 1024, 10)

WORKLOADS = {
    w.name: w
    for w in (
        Workload("SimpleCNN", "the article's CNN, SGD, batch 64", _simple_cnn),
        Workload("W1", "SimpleCNN as nn.Sequential, SGD with momentum", _w1),
        Workload("L10", "Linear(1000, 10), SGD, batch 32", _l10),
        Workload("W3", "MLP 784-512-512-10, Adam, batch 64", _w3),
        Workload("W4", "nn.TransformerEncoder, 4 layers of 256, AdamW", _w4),
        Workload("W4g", "nanoGPT-like, 4 blocks of 256, AdamW", _w4g),
        Workload("W4ge", "W4g with attention written out", _w4ge),
        Workload("W4gv", "W4g, another length each step", _w4gv),
        Workload("W5", "ResNet-18 for 32x32 images, SGD", _w5),
        Workload("ResNet18@224", "ResNet-18 for 224x224 images, SGD", _resnet18_224),
        Workload("W6", "LSTM(64, 128), Adam", _w6),
        Workload("VGG", "VGG-like CNN for 32x32 images, SGD", _vgg),
        Workload("MLP64", "MLP 64-1024-1024-10, Adam", _mlp64),
        Workload("UN", "UNet-like, two levels, 16 channels of 512x512, SGD", _un),
        Workload("EW", "three elementwise operators on 64 MiB", _ew, trains=False),
    )
}
"""By name."""
