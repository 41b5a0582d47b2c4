"""Modules around int8 layers: what follows a layer is computed along, or not at all."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable, Iterator

import int8
import native
import pytest
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization.fused_modules import (
    ChannelsLastMaxPool2d,
    Int8Sequential,
)

LEAST_DB = 38


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    with ptac.enable_model_quantization():
        yield


IMAGES = torch.randn(2, 16, 32, 32, generator=torch.Generator().manual_seed(3))


def net(*, norm: bool = True, relu: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    between = [nn.BatchNorm2d(32)] * norm + [nn.ReLU(inplace=True)] * relu
    last = [nn.Conv2d(32, 24, 3, stride=2, bias=False), nn.BatchNorm2d(24)]
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), *between, *last)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.running_mean)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


def check(stock: nn.Module, ours: nn.Module, x: Tensor = IMAGES) -> None:
    with torch.no_grad():
        assert int8.sqnr_db(stock(x), ours(x)) > LEAST_DB


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_what_follows_a_convolution(norm: bool, relu: bool) -> None:
    stock = net(norm=norm, relu=relu)
    ours = copy.deepcopy(stock)
    with int8.kernels() as made:
        ptac.quantize_model(ours, method="int8")
        assert type(ours) is Int8Sequential
        made.clear()
        check(stock, ours)
        assert made == ["int8_conv2d"] * 2
        ptac.dequantize_model(ours)
    assert type(ours) is nn.Sequential


def test_a_relu_behind_a_linear_layer() -> None:
    model = int8.mlp()
    seen: list[Tensor] = []
    with int8.kernels(), torch.no_grad():
        ptac.quantize_model(model, method="int8")
        together = model(int8.ROWS)
        for module in model:
            module.register_forward_hook(lambda m, x, y: seen.append(y))
        assert torch.equal(model(int8.ROWS), together)
        assert len(seen) == len(model)


def test_each_module_is_called_where_somebody_looks() -> None:
    stock = net()
    ours = ptac.quantize_model(copy.deepcopy(stock), method="int8")
    with torch.no_grad():
        plain = ours(IMAGES)
        for i in range(len(ours)):
            check(stock[i], ours[i], IMAGES if i == 0 else stock[:i](IMAGES))
            check(stock[: i + 1], ours[: i + 1])
    seen: list[str] = []
    handles = [
        ours[1].register_forward_pre_hook(lambda m, x: seen.append("before norm")),
        ours[0].register_forward_hook(lambda m, x, y: seen.append("after convolution")),
    ]
    check(stock, ours)
    assert seen == ["after convolution", "before norm"]
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        assert torch.equal(ours(IMAGES), plain)


def _replace(model: nn.Sequential) -> None:
    model[1] = nn.Identity()


def _train(model: nn.Sequential) -> None:
    model[1].train()


def _forget(model: nn.Sequential) -> None:
    model[1].running_mean = model[1].running_var = None


def _own_forward(model: nn.Sequential) -> None:
    model[1].forward = lambda x: x * 2


@pytest.mark.parametrize("change", [_replace, _train, _forget, _own_forward])
def test_a_normalization_that_is_another_now(change: Callable[..., None]) -> None:
    stock = net()
    ours = ptac.quantize_model(copy.deepcopy(stock), method="int8")
    change(stock)
    change(ours)
    check(stock, ours)


def test_statistics_are_read_at_each_call() -> None:
    stock = net()
    ours = ptac.quantize_model(copy.deepcopy(stock), method="int8")
    for model in (stock, ours):
        model[1].running_var.data.mul_(9)
        model[1].bias.data.add_(1)
    check(stock, ours)


def test_gradients_reach_the_normalization() -> None:
    ours = ptac.quantize_model(net(), method="int8")
    ours(IMAGES).sum().backward()
    assert ours[1].weight.grad is not None and ours[4].bias.grad is not None


def test_copies_and_pickles() -> None:
    ours = ptac.quantize_model(net(), method="int8")
    buffer = io.BytesIO()
    torch.save(ours, buffer)
    buffer.seek(0)
    with torch.no_grad():
        expected = ours(IMAGES)
        for other in (copy.deepcopy(ours), torch.load(buffer, weights_only=False)):
            assert torch.equal(other(IMAGES), expected)


@pytest.mark.parametrize("settings", [(2,), (3, 2, 1), (3, 2, 1, 2), (2, 2, 0, 1)])
def test_max_pooling_gives_the_same_bits(settings: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Conv2d(16, 32, 3), nn.MaxPool2d(*settings)).eval()
    ours = ptac.quantize_model(copy.deepcopy(stock), method="int8")
    assert type(ours[1]) is ChannelsLastMaxPool2d
    x = torch.randn(4, 32, 40, 40)
    x[0, 0, 0, 0], x[1, 2, 3, 4] = torch.nan, -0.0
    with torch.no_grad():
        ours_y, stock_y = ours[1](x), stock[1](x)
    assert torch.equal(ours_y.nan_to_num(7), stock_y.nan_to_num(7))
    assert ours_y.stride() == stock_y.stride()
    ptac.dequantize_model(ours)
    assert type(ours[1]) is nn.MaxPool2d


ALONE = """
import torch, pai_torchacc as ptac
from torch.nn import Conv2d, Linear
for layer, *x in (Linear(64, 64), 2, 64), (Conv2d(16, 16, 3), 1, 16, 9, 9):
    ptac.quantize_model(layer.eval(), method="int8")
    layer(torch.randn(*x)).sum().backward()
    print(layer.bias.grad is not None)
"""


def test_gradients_without_other_switches() -> None:
    """In a process where nothing else has been switched on."""
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=native.ROOT
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
