"""Modules around int8 layers: what follows a layer is computed along, or not at all."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import int8
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization.fused_modules import ChannelsLastMaxPool2d
from pai_torchacc.quantization.layers import Int8Conv2d, Int8Linear

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


def called(model: nn.Module, x: Tensor = IMAGES) -> set[str]:
    """Classes whose modules were called, looked at from outside."""
    seen = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "_call_impl":
            seen.add(type(frame.f_locals["self"]).__name__)

    sys.setprofile(note)
    try:
        with torch.no_grad():
            model(x)
    finally:
        sys.setprofile(None)
    return seen - {type(model).__name__}


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_what_follows_a_convolution(norm: bool, relu: bool) -> None:
    stock = net(norm=norm, relu=relu)
    ours = copy.deepcopy(stock)
    with int8.kernels() as made:
        ptac.quantize_model(ours, method="int8")
        made.clear()
        check(stock, ours)
        assert made == ["int8_conv2d"] * 2
        assert called(ours) == (set() if norm or relu else {"Int8Conv2d"})
        ptac.dequantize_model(ours)
    assert called(ours) >= {"Conv2d", "BatchNorm2d"}


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


PATCHED = {
    "ReLU.forward": (nn.ReLU, "forward"),
    "ReLU.__call__": (nn.ReLU, "__call__"),
    "BatchNorm2d.forward": (nn.BatchNorm2d, "forward"),
    "_BatchNorm.forward": (nn.modules.batchnorm._BatchNorm, "forward"),
    "Int8Conv2d.forward": (Int8Conv2d, "forward"),
    "Int8Linear.forward": (Int8Linear, "forward"),
    "F.relu": (F, "relu"),
    "F.batch_norm": (F, "batch_norm"),
    "torch.relu": (torch, "relu"),
    "Sequential.forward": (nn.Sequential, "forward"),
    "Module._call_impl": (nn.Module, "_call_impl"),
    "MaxPool2d.forward": (nn.MaxPool2d, "forward"),
}


@pytest.mark.parametrize("is_first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", PATCHED)
def test_patches_of_users_are_called(
    name: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch is called as often as where modules are called one by one."""
    owner, attribute = PATCHED[name]
    tail = nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 256, 20), nn.ReLU()
    conv = nn.Conv2d(16, 32, 3, padding=1)
    model = nn.Sequential(conv, nn.BatchNorm2d(32), nn.ReLU(), *tail).eval()
    ptac.disable_model_quantization()
    if is_first:
        calls = switching.count_calls(monkeypatch, owner, attribute)
    with ptac.enable_model_quantization(), torch.no_grad():
        ptac.quantize_model(model, method="int8", include=["0", "5"])
        assert isinstance(model[0], Int8Conv2d) and isinstance(model[5], Int8Linear)
        if not is_first:
            assert "Int8Conv2d" not in called(model)
            calls = switching.count_calls(monkeypatch, owner, attribute)
        calls.clear()
        model(IMAGES)
        seen = len(calls)
        calls.clear()
        y = IMAGES
        for module in model:
            y = module(y)
        expected = 1 if owner is nn.Sequential else len(calls)
        expected += name == "Module._call_impl"  # which calls the Sequential
        assert 0 < seen == expected
        monkeypatch.undo()


def test_a_patch_gives_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ptac.quantize_model(int8.mlp(), method="int8", include=["0"])
    with torch.no_grad():
        monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x.new_full((1,), 7))
        assert torch.equal(model[:2](int8.ROWS), torch.tensor([7.0]))


def test_global_hooks_and_subclasses() -> None:
    class Halved(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    ours = ptac.quantize_model(net(), method="int8")
    shared = nn.modules.module
    for register in (
        shared.register_module_forward_hook,
        shared.register_module_forward_pre_hook,
        shared.register_module_full_backward_hook,
        shared.register_module_full_backward_pre_hook,
    ):
        handle = register(lambda m, *args: None)
        try:
            assert {"Int8Conv2d", "BatchNorm2d", "ReLU"} <= called(ours)
        finally:
            handle.remove()
    assert called(ours) == set()
    with torch.no_grad():
        plain = ours[:3](IMAGES)
        ours[2] = Halved()
        assert torch.equal(ours[:3](IMAGES) * 2, plain)


def test_with_and_without_operator_fusion() -> None:
    """Both switches share a stand-in, and the last one takes it away."""
    before = nn.Sequential.forward
    ptac.disable_model_quantization()
    stock = nn.Sequential.forward
    assert stock is not before
    ours = ptac.quantize_model(net(), method="int8")
    shared = nn.Sequential.forward
    assert shared is before and called(ours) == set()
    with ptac.enable_operator_fusion():
        assert nn.Sequential.forward is shared
        assert called(ours) == set()
    assert nn.Sequential.forward is shared and called(ours) == set()
    ptac.enable_operator_fusion()
    ptac.disable_model_quantization()
    assert nn.Sequential.forward is shared
    assert "Int8Conv2d" in called(ours)  # norms may be operator_fusion's by its table
    ptac.disable_operator_fusion()
    assert called(ours) >= {"Int8Conv2d", "BatchNorm2d", "ReLU"}
    assert nn.Sequential.forward is stock


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
    assert switching.python(ALONE).split() == ["True", "True"]
