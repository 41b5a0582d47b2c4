"""Models of many kinds: planned calls against eager ones and float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import contract
import pytest
import torch
import torch.nn.functional as F
from planning import by_plan, counts, kinds, planned_of, steps, warm
from switching import accelerated, hits
from torch import Tensor, nn

import pai_torchacc as ptac


class Residual(nn.Module):
    def __init__(self, channels: int, activation: type[nn.Module] = nn.ReLU):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.act = activation(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        return self.act(y)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(
            channels, channels, 5, 2, 2, groups=channels, bias=False
        )
        self.norm = nn.BatchNorm2d(channels)
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.depthwise(x)))
        scale = self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1))))
        return x * torch.sigmoid(scale)


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat((a, self.conv(b)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 8 * i) for i in range(3))
        self.convs = nn.ModuleList(
            nn.Conv2d(8 + 8 * i, 8, 3, padding=1) for i in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            found.append(conv(F.relu(norm(torch.cat(found, 1)))))
        return torch.cat(found, 1)


class Block(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            part.view(n, t, 4, c // 4).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class ByHand(nn.Module):
    """Attention written out, with a mask that is made anew in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / 32**0.5
        mask = torch.full(scores.shape[-2:], float("-inf")).triu(1)
        return F.softmax(scores + mask, -1) @ v


class Windows(nn.Module):
    """Writes to parts of a tensor, and indexes by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))
        self.register_buffer("index", torch.arange(16) % 9)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(4, 4)
        mask[:2, 2:] = 1
        bias = self.table[self.index].view(4, 4, 4)
        y = x.clone()
        y[:, 1] = 2 * x[:, 0]
        y[:, 2].mul_(3)
        return torch.roll(y, (1, 1), (1, 2)) + bias + mask


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LSTM):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.cells = kind(16, 32, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 30)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.cells(self.embedding(tokens))
        return self.head(y)


class Upsampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.down(F.pad(x, (1, 1, 1, 1), "reflect")))
        return F.interpolate(F.leaky_relu(y, 0.1), scale_factor=2, mode="bilinear")


def images(channels: int, size: int = 14) -> Callable[[torch.dtype], Tensor]:
    return lambda dtype: contract.draw(2, channels, size, size, dtype=dtype)


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for c, k in ((3, 32), (32, 64)):
        layers += [nn.Conv2d(c, k, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 49, 100))


def mobile() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()),
        *(nn.Conv2d(64, 64, 3, 1, 1, groups=64, bias=False), nn.BatchNorm2d(64)),
        *(nn.Hardswish(), nn.Conv2d(64, 32, 1), nn.BatchNorm2d(32, affine=False)),
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.SiLU()),
        *(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 30, bias=False), nn.Sigmoid()),
    )


def matrices(*sizes: int) -> Callable[[torch.dtype], Tensor]:
    return lambda dtype: contract.draw(*sizes, dtype=dtype)


def words(dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 30, (3, 9))


MODELS = {
    "residual": (lambda: Residual(64), images(64)),
    "residual of ReLU6": (lambda: Residual(32, nn.ReLU6), images(32)),
    "squeeze-and-excite": (lambda: SqueezeExcite(32), images(32)),
    "shuffle": (Shuffle, images(32)),
    "dense": (Dense, images(8)),
    "vgg": (vgg, images(3, 28)),
    "mobile": (mobile, images(16)),
    "mlp": (mlp, matrices(50, 40)),
    "mlp of one row": (mlp, matrices(1, 40)),
    "mlp of three dimensions": (mlp, matrices(4, 5, 40)),
    "block": (Block, matrices(2, 10, 64)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
        matrices(2, 10, 64),
    ),
    "attention by hand": (ByHand, matrices(2, 12, 32)),
    "windows": (Windows, matrices(8, 4, 4, 4)),
    "lstm": (Recurrent, words),
    "gru": (lambda: Recurrent(nn.GRU), words),
    "upsampling": (Upsampling, images(3)),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(len(name))
    model = MODELS[name][0]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


@pytest.fixture(params=[True, False], ids=["accelerated", "alone"])
def kernels(request: pytest.FixtureRequest) -> Iterator[bool]:
    """With kernels of ours for all that they can do, and with none."""
    with accelerated() if request.param else nullcontext():
        yield request.param


@pytest.mark.parametrize("name", MODELS)
def test_planned_calls_keep_the_contract(name: str, kernels: bool) -> None:
    model, draw = make(name), MODELS[name][1]
    optimized = copy.deepcopy(model)
    in_double = copy.deepcopy(model).double()
    ptac.optimize(optimized, on_refusal="raise")
    with torch.no_grad():
        optimized(draw(torch.float32))
        for seed in range(3):
            torch.manual_seed(seed)
            x = draw(torch.float32)
            ours = optimized(x)
            with ptac.disabled():
                stock = model(x)
            exact = in_double(x.double() if x.is_floating_point() else x)
            contract.judge(name, [ours], [stock], [exact])
    assert counts(optimized) == (1, 3)


@pytest.mark.parametrize("name", ["residual", "mobile", "shuffle", "upsampling"])
def test_channels_last_stays(name: str, kernels: bool) -> None:
    model, draw = make(name).to(memory_format=torch.channels_last), MODELS[name][1]
    optimized = copy.deepcopy(model)
    ptac.optimize(optimized, on_refusal="raise")
    x = draw(torch.float32).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(3):
            ours, eager = optimized(x), model(x)
            assert ours.stride() == eager.stride()
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    assert counts(optimized) == (1, 2)


def test_what_may_run_as_one_does() -> None:
    """And each kernel counts its calls."""
    model = make("residual")
    x = images(64)(torch.float32)
    with accelerated():
        warm(model, x)
        assert kinds(model) == ["conv", "conv", "sum"]
        assert steps(model)[0] == "convolution + native_batch_norm + relu"
        convs, sums = hits("conv2d"), hits("add_act")
        by_plan(model, lambda: model(x))
        assert (convs.accelerated, sums.accelerated) == (2, 1)


def test_pooling_is_part_of_a_convolution() -> None:
    model = make("vgg")
    with accelerated():
        warm(model, images(3, 28)(torch.float32))
        assert kinds(model) == ["conv", "conv", "linear"]


def test_activations_are_part_of_products() -> None:
    model = make("mlp")
    with accelerated():
        warm(model, matrices(4, 5, 40)(torch.float32))
        assert kinds(model) == ["linear"] * 4
        assert steps(model)[1] == "addmm + silu"


def test_a_norm_alone_takes_its_activation() -> None:
    model = make("dense")
    with accelerated():
        warm(model, images(8)(torch.float32))
        assert steps(model).count("native_batch_norm + relu") == 3


def test_what_depends_on_no_argument_is_kept() -> None:
    model = make("attention by hand")
    warm(model, matrices(2, 12, 32)(torch.float32))
    assert not any(name.startswith(("full", "triu")) for name in steps(model))


@pytest.mark.parametrize("name", MODELS)
def test_the_arena_needs_little_more_than_what_is_alive(name: str) -> None:
    model, draw = make(name), MODELS[name][1]
    with accelerated():
        warm(model, draw(torch.float32))
        ((_, lowered),) = planned_of(model).plans()
        assert lowered.arena_bytes <= 1.02 * lowered.live_peak_bytes
