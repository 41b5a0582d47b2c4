"""Linear layers with activations on CUDA: numbers, launches, streams, captures."""

from __future__ import annotations

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
    BACKWARD,
    BGRADB,
    BIAS,
    DTYPES,
    FORWARD,
    GELU_AUX_BIAS,
    GELU_BIAS,
    IN_EPILOGUE,
    PLAIN,
    RELU,
    RELU_BIAS,
    SEEDS,
    hold,
    launched,
    layer,
    multiplied_by_stock,
)
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac
from benchmarks.extension import function

of_any_size = linear_layers.of_any_size


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_training(on: Any, activation: str, bias: bool, dtype: torch.dtype) -> None:
    forward, backward = hits(FORWARD), hits(BACKWARD)
    hold(
        lambda: layer(17, 40, activation, bias=bias),
        lambda: torch.randn(21, 17),
        dtype,
    )
    if bias or activation in IN_EPILOGUE:
        assert backward.accelerated == SEEDS
        assert forward.accelerated == 2 * SEEDS  # once for the gradient's sizes
    else:  # stock launches as often, and moves as much
        assert forward.accelerated == backward.accelerated == 0
    assert emulation.cublaslt().emulated_misuse() is None


def folded() -> Tensor:
    """Two dimensions of rows that lie at one distance."""
    return torch.randn(2, 5, 30)[..., :17]


VIEWS: dict[str, Callable[[], Tensor]] = {
    "three dimensions": lambda: torch.randn(2, 5, 17),
    "rows at a distance": lambda: torch.randn(9, 23)[:, 3:20],
    "both": folded,
    "a row": lambda: torch.randn(1, 17),
}


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("activation", ["relu", "gelu tanh"])
@pytest.mark.parametrize("view", VIEWS)
def test_views(on: Any, view: str, activation: str, n: int) -> None:
    """Rows of what is kept lie apart where n is no multiple of eight."""
    backward = hits(BACKWARD)
    seeds = contract.SEEDS
    hold(lambda: layer(17, n, activation), VIEWS[view], torch.float32, seeds)
    assert backward.accelerated == seeds


@pytest.mark.parametrize(
    ("activation", "bias", "products"),
    [
        ("relu", True, [RELU_BIAS]),
        ("relu", False, [RELU]),
        ("gelu tanh", True, [GELU_BIAS]),
    ],
)
def test_inference_is_a_launch(
    on: Any, activation: str, bias: bool, products: list[str]
) -> None:
    net, x = layer(6, 8, activation, bias=bias), torch.randn(4, 6, device="cuda")
    driver, counted = emulation.load(), hits(FORWARD)
    with torch.no_grad():
        net(x)
        since, blocks = len(emulation.launches()), driver.emulated_blocks_ever()
        emulation.stock_calls(), emulation.calls()
        y = net(x)
    assert counted.accelerated == 2
    assert launched(since) == products
    assert driver.emulated_blocks_ever() == blocks + 2  # the result, and a workspace
    assert not emulation.stock_calls()
    assert set(emulation.calls()) <= ALLOWED
    with ptac.disabled(), torch.inference_mode():
        torch.testing.assert_close(y.cpu(), net(x).cpu())


@pytest.mark.parametrize(
    ("activation", "forward", "backward"),
    [
        ("relu", [RELU_BIAS], ["bias_act_grad_wide_bf16"]),
        ("gelu tanh", [GELU_AUX_BIAS], ["bias_act_grad_wide_bf16"]),
        ("gelu", [BIAS, "bias_act_wide_bf16"], ["bias_act_grad_wide_bf16"]),
    ],
)
def test_launches_of_a_step(
    on: Any, activation: str, forward: list[str], backward: list[str]
) -> None:
    """One less than stock's for the bias, and one where the library has an epilogue."""
    net = layer(16, 32, activation, dtype=torch.bfloat16)
    x = torch.randn(8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    since = len(emulation.launches())
    net(x).sum().backward()
    assert launched(since) == [*forward, *backward, PLAIN, BGRADB]
    assert not multiplied_by_stock()


def test_launches_follow_stream_and_device(on: Any) -> None:
    nets = [layer(6, 8, device=f"cuda:{i}") for i in range(2)]
    x = [torch.randn(4, 6, device=f"cuda:{i}") for i in range(2)]
    stream, since = torch.Stream("cuda:1"), len(emulation.launches())
    with stream:
        y = nets[1](x[1])
    nets[0](x[0]).sum().backward()
    y.sum().backward()
    places = emulation.places(since)
    number = str(stream.stream_id)
    assert places == [["1", number], *[["0", "0"]] * 3, *[["1", number]] * 2]


def test_tensors_of_two_devices_are_stocks(on: Any) -> None:
    net = layer(6, 8)
    counted = hits(FORWARD)
    call = ptac.ops.linear_act
    call(torch.randn(4, 6, device="cuda:1"), net[0].weight, net[0].bias, "relu")
    call(torch.randn(4, 6, device="cuda"), net[0].weight.cpu(), None, "relu")
    assert counted.forwarded == {"device": 2}


def test_capture(on: Any) -> None:
    """Products that have not been planned are stock's there; others are captured."""
    net, x = layer(6, 8, "gelu"), torch.randn(4, 6, device="cuda")
    stream, counted, grad = torch.Stream("cuda"), hits(FORWARD), torch.randn(4, 8)
    grad = grad.cuda()

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
    assert captured() == [BIAS, "bias_act_wide_f32", "bias_act_grad_wide_f32", BGRADB]
    assert [c.accelerated for c in counted] == [1, 1]


def test_checks_are_left_out_of_captures() -> None:
    with ptac.enable(FUSION, verify=1):
        net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
        net(x)
        counted = hits(FORWARD)
        with emulation.capturing(torch.Stream("cuda")):
            net(x)
        assert counted.accelerated == 1
