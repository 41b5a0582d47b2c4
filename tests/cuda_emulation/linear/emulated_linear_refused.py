"""What linear layers on CUDA leave to stock, and what happens where one fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import emulation
import internals
import linear_layers
import pytest
import torch
from linear_layers import (
    ACTIVATIONS,
    BACKWARD,
    BGRADB,
    DTYPES,
    FORWARD,
    LEAST,
    RELU_BIAS,
    SEEDS,
    from_work,
    hold,
    launched,
    layer,
    multiplied_by_stock,
    step,
)
from switching import FUSION, hits
from torch import nn

import pai_torchacc as ptac

of_any_size = linear_layers.of_any_size


@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh", "sigmoid"])
def test_activations_that_take_a_kernel_are_stocks_without_gradients(
    on: Any, activation: str
) -> None:
    counted = hits(FORWARD)
    with torch.no_grad():
        layer(6, 8, activation)(torch.randn(4, 6, device="cuda"))
    assert counted.accelerated == 0
    assert multiplied_by_stock()


def test_what_is_refused(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda")
    linear = nn.Linear(6, 8).cuda()
    counted = hits(FORWARD)
    since = len(emulation.launches())
    with torch.no_grad():
        linear(x)
        ops = ptac.ops.linear_act
        ops(x, linear.weight, linear.bias)
        ops(x[:0], linear.weight, linear.bias, "relu")
        ops(x.double(), linear.weight.double(), linear.bias.double(), "relu")
        ops(x.expand(3, 4, 6).transpose(0, 1), linear.weight, None, "relu")
        with pytest.raises(RuntimeError):
            ops(x, linear.weight.half(), None, "relu")
        with ptac.disabled():
            ops(x, linear.weight, linear.bias, "relu")
    assert counted.accelerated == 0
    assert counted.forwarded == {
        "not measured faster": 2, "empty": 1, "dtype": 2, "layout": 1,
        "disabled in this thread": 1,
    }  # fmt: skip
    assert not launched(since)


def test_small_layers_are_trained_by_stock(on: Any) -> None:
    """Whose node takes less of the host's time than ours."""
    from_work(LEAST)
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    forward, backward = hits(FORWARD), hits(BACKWARD)
    net(x).sum().backward()
    assert (forward.accelerated, backward.accelerated) == (0, 0)
    net.requires_grad_(False)(x)
    assert forward.accelerated == 1


def test_a_gradient_that_autocast_would_cast_is_stocks(on: Any) -> None:
    """Of a call before its block, which is walked back within it."""
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    counted, backward = hits(FORWARD), hits(BACKWARD)
    loss = net(x).sum()
    with torch.autocast("cuda", torch.bfloat16):
        loss.backward()
    assert (counted.accelerated, backward.accelerated) == (1, 0)
    assert backward.forwarded == {"autocast": 1}


@contextlib.contextmanager
def setting(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


matmul = torch.backends.cuda.matmul


@pytest.mark.parametrize(
    ("name", "value", "dtype"),
    [
        ("allow_fp16_accumulation", True, torch.float16),
        ("allow_fp16_reduced_precision_reduction", (False, False), torch.float16),
        ("allow_bf16_reduced_precision_reduction", (False, False), torch.bfloat16),
    ],
)
def test_products_of_other_sums_are_stocks(
    on: Any, name: str, value: Any, dtype: torch.dtype
) -> None:
    counted = hits(FORWARD)
    with setting(matmul, name, value), torch.no_grad():
        for each in DTYPES:
            net = layer(6, 8, dtype=each)
            ptac.ops.linear_act(
                torch.randn(4, 6, device="cuda", dtype=each),
                net[0].weight,
                net[0].bias,
                "relu",
            )
    assert counted.accelerated == 2
    assert counted.forwarded == {"lowered precision": 1}
    assert not dtype.is_complex


def test_sums_that_may_be_of_16_bits_are_of_32(on: Any) -> None:
    """Which is what such programs allow, and what others ask for."""
    counted = hits(FORWARD)
    with torch.no_grad():
        for value in (False, True):
            with setting(matmul, "allow_fp16_reduced_precision_reduction", value):
                net = layer(6, 8, dtype=torch.float16)
                net(torch.randn(4, 6, device="cuda", dtype=torch.float16))
    assert counted.accelerated == 2


def test_tf32_follows_torchs_setting_at_each_call(on: Any) -> None:
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    since = len(emulation.launches())
    y = net(x)
    with setting(matmul, "fp32_precision", "tf32"):
        net(x)
        y.sum().backward()
    net(x)
    assert launched(since) == [
        RELU_BIAS, f"{RELU_BIAS}_tf32", "bias_act_grad_wide_f32",
        f"{BGRADB}_tf32", RELU_BIAS,
    ]  # fmt: skip


def test_algorithms_that_have_to_be_deterministic_are_stocks(on: Any) -> None:
    """It may raise, or warn, by what CUBLAS_WORKSPACE_CONFIG says."""
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    counted = hits(FORWARD)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        ptac.ops.linear_act(x, net[0].weight, net[0].bias, "relu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.forwarded == {"mode or transform active": 1}


def test_a_refusal_of_the_library_is_kept(on: Any) -> None:
    lt, counted = emulation.cublaslt(), hits(FORWARD)
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    with ptac.disabled():
        expected = net(x).cpu()
    lt.emulated_refuse(6)
    with torch.no_grad():
        net(x)
        asked, since = lt.emulated_heuristics(), len(emulation.launches())
        y = net(x)
    assert lt.emulated_heuristics() == asked
    assert counted.forwarded["argument"] == 2
    assert not launched(since)
    assert torch.equal(y.cpu(), expected)


def test_training_by_a_library_without_epilogues(on: Any) -> None:
    for epilogue in (2, 4, 6, 36, 164, 512):
        emulation.cublaslt().emulated_refuse(epilogue)
    backward = hits(BACKWARD)
    for activation in ACTIVATIONS:
        make = layer_of(layer, 17, 40, activation)
        hold(make, lambda: torch.randn(21, 17), torch.float32)
    assert backward.accelerated == SEEDS * len(ACTIVATIONS)


def layer_of(f: Any, *args: Any) -> Any:
    return lambda: f(*args)


@pytest.mark.parametrize("trains", [False, True])
def test_a_product_that_fails(on: Any, trains: bool) -> None:
    """Stock does the call, and those that follow."""
    net, x = layer(6, 8).requires_grad_(trains), torch.randn(4, 6, device="cuda")
    with ptac.disabled():
        expected = net(x).cpu()
    counted = hits(FORWARD)
    emulation.cublaslt().emulated_break(13)
    assert torch.equal(net(x).cpu(), expected)
    emulation.cublaslt().emulated_break(0)
    assert torch.equal(net(x).cpu(), expected)
    assert (counted.accelerated, counted.failed) == (0, 1)
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in ptac.report()


def test_a_gradient_that_fails(on: Any) -> None:
    net, x, grad = layer(6, 8), torch.randn(4, 6), torch.randn(4, 8)
    with ptac.disabled():
        expected = step(net, x.cuda(), grad)
    counted = hits(BACKWARD)
    internals.inject_failure(BACKWARD)
    found = step(net, x.cuda(), grad)
    assert (counted.accelerated, counted.failed) == (0, 1)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_verify_compares(activation: str) -> None:
    with ptac.enable(FUSION, verify=1):
        forward, backward = hits(FORWARD), hits(BACKWARD)
        step(layer(6, 9, activation), torch.randn(4, 6).cuda(), torch.randn(4, 9))
        assert (forward.accelerated, backward.accelerated) == (1, 1)
    assert "quarantined" not in ptac.report()


def test_verify_finds_wrong_numbers() -> None:
    with ptac.enable(FUSION, verify=1):
        net, x = layer(6, 8, "gelu"), torch.randn(4, 6, device="cuda")
        with ptac.disabled():
            expected = net(x).cpu()
        emulation.load().emulated_skip_launch()  # of the activation
        assert torch.equal(net(x).cpu(), expected)
        assert "shadow check found" in ptac.report()
    internals.reset_quarantine()
