"""nn.ReLU and the nn.MaxPool2d behind it, in nn.Sequential on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import emulation
import internals
import pytest
import torch
import torch.nn.functional as F
from relu_pooling import NAMES, assert_same, counted, image, served, with_gradient
from switching import FUSION
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac

POOLS: dict[str, Callable[[], nn.MaxPool2d]] = {
    "halves": lambda: nn.MaxPool2d(2),
    "overlapping": lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "dilated": lambda: nn.MaxPool2d((2, 3), (1, 2), dilation=(2, 1)),
}


class MyReLU(nn.ReLU):
    """Another class may do anything."""


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_bits_are_stocks(
    on: Any, pool: Callable[[], nn.MaxPool2d], channels_last: bool
) -> None:
    net, x = nn.Sequential(nn.ReLU(), pool()), image(2, 8, 9, 11)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    counts, since = counted(), len(emulation.launches())
    found = with_gradient(net, x.cuda())
    assert served(counts) == [1, 1]
    assert [
        line.split()[0].rpartition("_f32")[0] for line in emulation.launches()[since:]
    ] == [name + "_packs" * channels_last for name in NAMES]
    assert emulation.stock_calls() == []
    with torch.no_grad():
        assert torch.equal(
            net(x.cuda()).cpu().nan_to_num(7), found[0].cpu().nan_to_num(7)
        )
    assert served(counts) == [2, 1]
    with ptac.disabled():
        assert_same(found, with_gradient(net, x))


def convnet(in_place: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(in_place), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(in_place), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )


def trained(net: nn.Sequential, x: Tensor, steps: int = 3) -> list[Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return [t.detach().cpu() for t in net.state_dict().values()]


@pytest.mark.parametrize("in_place", [False, True])
def test_training_and_inference(on: Any, in_place: bool) -> None:
    """Behind a convolution and behind a norm nobody sees what is not overwritten."""
    ours, stock = convnet(in_place).cuda(), convnet(in_place).cuda()
    x = torch.randn(4, 3, 14, 14).cuda()
    counts = counted()
    found = trained(ours, x)
    assert served(counts) == [6, 6]
    twin = copy.deepcopy(ours.eval().cpu()).cuda()
    with torch.no_grad():
        result = twin(x).cpu()
    assert served(counts) == [8, 6]
    with ptac.disabled():
        for a, b in zip(found, trained(stock, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(result, stock.eval()(x).cpu())


def test_the_node_has_the_name_of_torchs(on: Any) -> None:
    x = torch.randn(1, 2, 4, 4).cuda().requires_grad_()
    y = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))(x)
    assert y.grad_fn is not None
    assert y.grad_fn.name() == "MaxPool2DWithIndicesBackward0"


# --- in place ---


def test_what_a_program_can_see_is_overwritten(on: Any) -> None:
    """The input of all, and what a module hands on that is not known to be new."""
    counts = counted()
    for net in (
        nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    ):
        x = torch.randn(1, 2, 4, 4)
        here = x.cuda()
        y = net(here)
        assert torch.equal(here.cpu(), x.relu())
        assert torch.equal(y.cpu(), F.max_pool2d(x.relu(), 2))
    assert served(counts) == [0, 0]


def test_hooks_see_what_was_overwritten(on: Any) -> None:
    """One that removes itself, too."""
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(True), nn.MaxPool2d(2)).cuda()
    seen: list[Tensor] = []

    def look(module: nn.Module, args: Any, y: Tensor) -> None:
        seen.append(y)
        handle.remove()

    handle = net[0].register_forward_hook(look)
    x, counts = torch.randn(1, 2, 4, 4).cuda(), counted()
    net(x)
    assert counts[0].accelerated == 0
    assert bool((seen[0].cpu() >= 0).all())
    net(x)
    assert counts[0].accelerated == 1


# --- who does the call ---


def module_with_hook() -> nn.Sequential:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    net[0].register_forward_hook(lambda module, args, y: None)
    return net


def pool_with_hook() -> nn.Sequential:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    net[1].register_forward_pre_hook(lambda module, args: None)
    return net


def relu_with_a_method() -> nn.Sequential:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    net[0].forward = torch.abs
    return net


@pytest.mark.parametrize(
    "make",
    [
        module_with_hook,
        pool_with_hook,
        relu_with_a_method,
        lambda: nn.Sequential(MyReLU(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
        lambda: nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)),
        lambda: nn.Sequential(nn.ReLU6(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),
    ],
)
def test_modules_that_are_called(on: Any, make: Callable[[], nn.Sequential]) -> None:
    net, x = make(), image(1, 2, 4, 4)
    counts = counted()
    found = net(x.cuda())
    assert (served(counts), counts[0].forwarded) == ([0, 0], {})
    with ptac.disabled():
        for a, b in zip(found, net(x), strict=True):
            assert torch.equal(a.cpu().nan_to_num(7), b.nan_to_num(7))


@pytest.mark.parametrize("name", ["relu", "relu_"])
def test_patched_functions_are_called(
    on: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    counts = counted()
    monkeypatch.setattr(torch, name, lambda x: x.abs())
    net(torch.randn(1, 2, 4, 4).cuda())
    assert served(counts) == [0, 0]


def test_on_the_cpu_modules_are_called(on: Any) -> None:
    counts = counted()
    nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))(torch.randn(1, 2, 4, 4))
    assert (served(counts), counts[0].forwarded) == ([0, 0], {})


def test_excluded() -> None:
    x = torch.randn(1, 2, 4, 4).cuda()
    with ptac.enable(FUSION, exclude=["relu_max_pool2d"]):
        counts = counted()
        with_gradient(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), x)
        assert served(counts) == [0, 0]


def test_under_autocast(on: Any) -> None:
    net = convnet(True).cuda()
    counts = counted()
    with torch.autocast("cuda", torch.bfloat16):
        y = net(torch.randn(4, 3, 14, 14).cuda())
    y.float().square().mean().backward()
    assert served(counts) == [2, 2]
    assert y.dtype == torch.bfloat16


def test_recomputed_where_hooks_see_what_is_saved(on: Any) -> None:
    net = convnet(False).cuda()
    x = torch.randn(4, 3, 14, 14).cuda().requires_grad_()
    counts = counted()
    y: Tensor = checkpoint(net, x, use_reentrant=False)
    y.sum().backward()
    assert served(counts) == [0, 0]
    assert counts[0].forwarded == {"hooks": 4}


def test_shadow_checks_find_wrong_numbers() -> None:
    net, x = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), image(2, 4, 8, 8)
    expected = with_gradient(net, x)
    try:
        with ptac.enable(FUSION, verify=1):
            counts = counted()
            assert_same(with_gradient(net, x.cuda()), expected)
            assert served(counts) == [1, 1]
            emulation.load().emulated_skip_launch()
            assert_same(with_gradient(net, x.cuda()), expected)
            with_gradient(net, x.cuda())
            assert counts[0].forwarded == {"quarantined": 1}
    finally:
        internals.reset_quarantine()


def test_compiled(on: Any) -> None:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(1, 2, 4, 4).cuda()
    counts = counted()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x).cpu(), net(x).cpu())
    assert counts[0].accelerated == 1
