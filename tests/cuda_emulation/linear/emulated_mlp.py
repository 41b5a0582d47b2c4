"""Blocks of two layers on CUDA as one node: numbers, launches, memory, captures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import contract
import emulation
import linear_layers
import pytest
import torch
from linear_layers import (
    ACTIVATIONS,
    ALLOWED,
    BGRADB,
    BIAS,
    DGELU_BGRAD,
    DRELU_BGRAD,
    DTYPES,
    GELU_AUX_BIAS,
    IN_EPILOGUE,
    PLAIN,
    RELU_BIAS,
    block,
    hold,
    launched,
    multiplied_by_stock,
)
from linear_layers import MLP as FORWARD
from linear_layers import MLP_BACKWARD as BACKWARD
from switching import FUSION, hits
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.extension import function

of_any_size = linear_layers.of_any_size

SEEDS = 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_training(on: Any, activation: str, bias: bool, dtype: torch.dtype) -> None:
    forward, backward = hits(FORWARD), hits(BACKWARD)
    hold(
        lambda: block(13, 24, 9, activation, bias=bias),
        lambda: torch.randn(21, 13),
        dtype,
    )
    if bias or activation in IN_EPILOGUE:
        assert backward.accelerated == SEEDS
        assert forward.accelerated == 2 * SEEDS  # once for the gradient's sizes
    else:  # stock launches as often, and moves as much
        assert forward.accelerated == backward.accelerated == 0
    assert emulation.cublaslt().emulated_misuse() is None


VIEWS: dict[str, Callable[[], Tensor]] = {
    "three dimensions": lambda: torch.randn(2, 5, 17),
    "rows at a distance": lambda: torch.randn(9, 23)[:, 3:20],
    "both": lambda: torch.randn(2, 5, 30)[..., :17],
    "a row": lambda: torch.randn(1, 17),
}


@pytest.mark.parametrize("hidden", [5, 40])
@pytest.mark.parametrize("activation", ["relu", "gelu tanh", "tanh"])
@pytest.mark.parametrize("view", VIEWS)
def test_views(on: Any, view: str, activation: str, hidden: int) -> None:
    """Rows of what is kept lie apart where hidden is no multiple of eight."""
    backward = hits(BACKWARD)
    seeds = contract.SEEDS
    hold(lambda: block(17, hidden, 3, activation), VIEWS[view], torch.float32, seeds)
    assert backward.accelerated == seeds
    assert emulation.cublaslt().emulated_misuse() is None


RELU_MASK, GELU = "bias_act_wide_bf16", "bias_act_wide_bf16"
GRAD, SUMS = "bias_act_grad_wide_bf16", "bias_grad_bf16"


@pytest.mark.parametrize(
    ("activation", "forward", "backward"),
    [
        ("relu", [RELU_BIAS, RELU_MASK, BIAS], [DRELU_BGRAD, BGRADB, PLAIN, PLAIN]),
        ("gelu tanh", [GELU_AUX_BIAS, BIAS], [DGELU_BGRAD, BGRADB, PLAIN, PLAIN]),
        ("gelu", [BIAS, GELU, BIAS], [PLAIN, GRAD, SUMS, BGRADB, PLAIN, PLAIN]),
        ("tanh", [BIAS, GELU, BIAS], [PLAIN, GRAD, SUMS, BGRADB, PLAIN, PLAIN]),
    ],
)
def test_launches_of_a_step(
    on: Any, activation: str, forward: list[str], backward: list[str]
) -> None:
    """Stock launches three forward, and seven backward: four products among them."""
    net, x = linear_layers.batch(activation)
    since = len(emulation.launches())
    y = net(x)
    assert launched(since) == forward
    since = len(emulation.launches())
    emulation.stock_calls()
    y.backward(torch.ones_like(y))
    assert launched(since) == backward
    assert not multiplied_by_stock()
    with ptac.disabled():
        emulation.stock_calls()
        net(x).backward(torch.ones_like(y))
        names = emulation.counted_stock_calls()
    ran = [n for n in names if n in linear_layers.LAUNCHES]
    assert len(ran) == 10
    assert len(forward) + len(backward) < len(ran)


def test_a_step_asks_no_more_of_the_driver(on: Any) -> None:
    """Nothing waits or allocates by itself; memory comes from torch's allocator."""
    net, x = linear_layers.batch("relu")
    grad = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16)
    net(x).backward(grad)
    driver = emulation.load()
    emulation.calls()
    blocks = driver.emulated_blocks_ever()
    y = net(x)
    assert driver.emulated_blocks_ever() == blocks + 4  # y, h, mask, workspace
    assert {c for c in emulation.calls() if "Launch" not in c} <= ALLOWED
    y.backward(grad)
    assert {c for c in emulation.calls() if "Launch" not in c} <= ALLOWED


KEPT = 64 * 8 * 4
"""Bytes of a hidden layer of 64 by 8 in float32."""


@pytest.mark.parametrize(
    ("activation", "more"),
    [("relu", 64 * 128 // 8), ("gelu tanh", 0), ("gelu", 0), ("tanh", 0)],
)
def test_what_is_kept_for_backward(on: Any, activation: str, more: int) -> None:
    """What stock keeps, and a mask that is a bit an element, in rows of 128."""
    net, x = block(8, 8, 8, activation), torch.randn(64, 8, device="cuda")

    def kept() -> int:
        before = emulation.load().emulated_bytes()
        y = net(x)
        n = emulation.load().emulated_bytes() - before
        del y
        return n

    counted = hits(FORWARD)
    found = kept()
    assert counted.accelerated == 1
    with ptac.disabled():
        assert found <= kept() + more


def test_a_frozen_first_layer_is_not_gone_through(on: Any) -> None:
    """Neither is there anything of it to keep but its result."""
    net = block(16, 64, 8, "gelu tanh", dtype=torch.bfloat16)
    net[0].requires_grad_(False)
    x = torch.randn(8, 16, device="cuda", dtype=torch.bfloat16)
    since = len(emulation.launches())
    y = net(x)
    y.backward(torch.ones_like(y))
    assert launched(since) == ["product_36", BIAS, BGRADB]


def test_capture(on: Any) -> None:
    """Products that have not been planned are stock's there; others are captured."""
    net, x = block(6, 16, 8, "gelu tanh"), torch.randn(4, 6, device="cuda")
    stream, grad = torch.Stream("cuda"), torch.randn(4, 8).cuda()
    counted = hits(FORWARD)

    def captured() -> list[str]:
        since = len(emulation.launches())
        with emulation.capturing(stream):
            net(x).backward(grad)
        return launched(since)

    function("ptac_lt_plan_clear", None)()
    assert captured() == []
    assert counted.forwarded == {"kernel not compiled yet": 1}
    net(x).backward(grad)
    counted = hits(FORWARD), hits(BACKWARD)
    assert captured() == [GELU_AUX_BIAS, BIAS, DGELU_BGRAD, BGRADB, PLAIN]
    assert [c.accelerated for c in counted] == [1, 1]


def test_checks_are_left_out_of_captures() -> None:
    with ptac.enable(FUSION, verify=1):
        net, x = block(6, 16, 8), torch.randn(4, 6, device="cuda")
        net(x)
        counted = hits(FORWARD)
        with emulation.capturing(torch.Stream("cuda")):
            net(x)
        assert counted.accelerated == 1


def test_launches_follow_stream_and_device(on: Any) -> None:
    nets = [block(6, 16, 8, "gelu tanh", device=f"cuda:{i}") for i in range(2)]
    x = [torch.randn(4, 6, device=f"cuda:{i}") for i in range(2)]
    stream, since = torch.Stream("cuda:1"), len(emulation.launches())
    with stream:
        y = nets[1](x[1])
    nets[0](x[0]).sum().backward()
    y.sum().backward()
    places = emulation.places(since)
    number = str(stream.stream_id)
    ours = [["0", "0"]] * 5
    assert places == [*[["1", number]] * 2, *ours, *[["1", number]] * 3]


def test_tensors_of_two_devices_are_stocks(on: Any) -> None:
    net = block(6, 16, 8)
    net[2].to("cuda:1")
    counted = hits(FORWARD)
    with contextlib.suppress(RuntimeError):  # which the emulation does not raise
        net(torch.randn(4, 6, device="cuda"))
    assert counted.forwarded == {"device": 1}


class _Block(nn.Sequential):
    """As torchvision's MLP: the forward of nn.Sequential."""


def test_where_blocks_are_seen(on: Any) -> None:
    """A layer that does nothing, classes of one's own, blocks behind one another."""
    first, act, second = block(6, 16, 8)
    x = torch.randn(4, 6, device="cuda")
    nets = [
        (1, nn.Sequential(first, act, nn.Dropout(0.0), second)),
        (1, nn.Sequential(first, act, nn.Dropout(0.3), second).eval()),
        (1, _Block(first, nn.ReLU(inplace=True), second, nn.Dropout(0.0))),
        (2, nn.Sequential(*block(6, 16, 8), nn.GELU(), *block(8, 16, 4))),
        (0, nn.Sequential(first, act, nn.Dropout(0.3), second)),
        (0, nn.Sequential(first, act, nn.Dropout(0.0), nn.Identity(), second)),
        (0, nn.Sequential(first, nn.Identity(), second)),
        (0, nn.Sequential(first, act)),
    ]
    for n, net in nets:
        counted = hits(FORWARD)
        torch.manual_seed(0)
        y = net(x)
        assert counted.accelerated == n
        with ptac.disabled():
            torch.manual_seed(0)
            torch.testing.assert_close(y.cpu(), net(x).cpu())
