"""Linear layers on CUDA under autocast: whose casts, how many, and what they give."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import contract
import emulation
import linear_layers
import pytest
import torch
from linear_layers import (
    ACTIVATIONS,
    BACKWARD,
    BGRADB,
    FORWARD,
    IN_EPILOGUE,
    LEAST,
    PLAIN,
    RELU_BIAS,
    autocast_step_launches,
    autocasting,
    casts,
    from_work,
    hold_autocast,
    launched,
    layer,
)
from switching import FUSION, hits
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.extension import function

of_any_size = linear_layers.of_any_size

LOWER = pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=str)
BF16 = torch.bfloat16


@LOWER
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_training(on: Any, activation: str, bias: bool, to: torch.dtype) -> None:
    forward, backward = hits(FORWARD), hits(BACKWARD)
    seeds = contract.SEEDS_OF_LARGE
    hold_autocast(
        lambda: layer(19, 24, activation, bias=bias),
        lambda: torch.randn(45, 19),
        to,
    )
    is_ours = bias or activation in IN_EPILOGUE
    assert forward.accelerated == backward.accelerated == is_ours * seeds
    assert emulation.cublaslt().emulated_misuse() is None


VIEWS: dict[str, Callable[[], Tensor]] = {
    "three dimensions": lambda: torch.randn(2, 25, 17),
    "rows at a distance": lambda: torch.randn(50, 23)[:, 3:20],
    "of 16 bits": lambda: torch.randn(50, 17).bfloat16(),
    "of the other 16 bits": lambda: torch.randn(50, 17).half(),
}


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("view", VIEWS)
def test_inputs(on: Any, view: str, activation: str) -> None:
    """What has the dtype already is not cast, all else is."""
    backward = hits(BACKWARD)
    hold_autocast(lambda: layer(17, 23, activation), VIEWS[view], BF16)
    assert backward.accelerated == contract.SEEDS_OF_LARGE


WEIGHTS = {"float32": torch.float32, "the same": BF16, "others": torch.float16}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_of_16_bits(on: Any, weights: str) -> None:
    backward = hits(BACKWARD)
    hold_autocast(
        lambda: layer(17, 24).to(WEIGHTS[weights]), lambda: torch.randn(50, 17), BF16
    )
    assert backward.accelerated == contract.SEEDS_OF_LARGE


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("grads", [True, False])
def test_casts(on: Any, cache: bool, grads: bool) -> None:
    """As many as stock makes in a block of autocast, whoever goes first."""
    net = layer(16, 8)
    xs = [torch.randn(4, 16, device="cuda", requires_grad=i == 0) for i in range(2)]

    def made(*ours: bool) -> tuple[int, list[int]]:
        """Calls that were ours, and casts of each call."""
        counted, found = hits(FORWARD), []
        with autocasting(cache_enabled=cache), torch.set_grad_enabled(grads):
            for is_ours in ours:
                with contextlib.nullcontext() if is_ours else ptac.disabled():
                    for x in xs:
                        emulation.stock_calls()
                        net(x)
                        found.append(casts())
        return counted.accelerated, found

    expected = made(False, False)[1]
    assert expected == ([3, 1, 0, 1] if cache else [3] * 4)
    assert made(True, True) == (4, expected)
    assert made(True, False) == (2, expected)
    assert made(False, True) == (2, expected)


def test_a_frozen_weight_is_cast_at_each_call(on: Any) -> None:
    """Autocast keeps what may be trained; stock and we cast all else again."""
    net, x = layer(16, 8).requires_grad_(False), torch.randn(4, 16, device="cuda")
    counted = hits(FORWARD)
    with autocasting():
        for _ in range(2):
            emulation.stock_calls()
            net(x)
            assert casts() == 3
    assert counted.accelerated == 2


def test_the_cast_is_autocasts_own(on: Any) -> None:
    """The node takes stock's cast, and stock the node's."""
    net, x = layer(16, 8), torch.randn(4, 16, device="cuda")

    for ours_first in (True, False):
        orders = (contextlib.nullcontext, ptac.disabled)
        with autocasting():
            ys = []
            for context in orders if ours_first else orders[::-1]:
                with context():
                    ys.append(net(x))
        ours, stock = ys if ours_first else ys[::-1]
        product = stock.grad_fn.next_functions[0][0]
        weight = of(product.next_functions[2][0])  # behind its transposition
        assert of(ours.grad_fn) == of(product) | weight
        assert len(of(ours.grad_fn)) == 2


def of(node: Any) -> set[Any]:
    """The casts right behind a node."""
    return {n for n, _ in node.next_functions if n and "ToCopy" in n.name()}


def test_a_step_launches_less(on: Any) -> None:
    """Casts are as many as stock's, and their way back."""
    net, x = layer(16, 64), torch.randn(8, 16, device="cuda")
    launches = partial(autocast_step_launches, net, x, 64)
    launches()  # gradients are there to be added to
    ours, others = launches()
    with ptac.disabled():
        none, stock = launches()
    assert not none
    assert casts(others) == casts(stock) == 5
    assert ours == [RELU_BIAS, "bias_act_grad_wide_bf16", BGRADB]
    left = [n for n in stock if n not in others]
    assert left == ["aten::addmm", "aten::relu", "aten::threshold_backward",
                    "aten::mm", "aten::sum"]  # fmt: skip


def test_inference_in_one_block(on: Any) -> None:
    """No launch but the product and the cast of x, however long the block lasts."""
    net, x = layer(16, 64), torch.randn(8, 16, device="cuda")
    with autocasting(), torch.no_grad():
        net(x)
        emulation.stock_calls()
        since = len(emulation.launches())
        for _ in range(3):
            y = net(x)
        assert launched(since) == [RELU_BIAS] * 3
        assert [*emulation.stock_calls()] == ["aten::copy_"] * 3
        with ptac.disabled():
            torch.testing.assert_close(y.cpu(), net(x).cpu())
        net(x.to(BF16))
        with torch.inference_mode():
            assert net(x).dtype == BF16


def test_what_the_library_cannot_is_not_cast_twice(on: Any) -> None:
    net, x = layer(16, 64), torch.randn(8, 16, device="cuda")
    emulation.cublaslt().emulated_refuse(int(RELU_BIAS.rpartition("_")[2]))
    function("ptac_lt_plan_clear", None)()
    counted = hits(FORWARD)
    with autocasting(), torch.no_grad():
        for n in (3, 1):
            emulation.stock_calls()
            y = net(x)
            calls = emulation.stock_calls()
            assert casts(calls) == n
            assert "aten::addmm" in calls
    assert counted.accelerated == 0
    with ptac.disabled(), autocasting(), torch.no_grad():
        assert torch.equal(y.cpu(), net(x).cpu())


def test_by_name(on: Any) -> None:
    """The operator is under autocast what its parts are, served or not."""
    net, x = layer(16, 8, "gelu"), torch.randn(4, 16, device="cuda", requires_grad=True)
    args = x, net[0].weight, net[0].bias, "gelu"
    inputs = args[:3]

    def found(call: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        with autocasting():
            y = call()
        grads = torch.autograd.grad(y.float().square().sum(), inputs)
        return tuple(t.cpu() for t in (y, *grads))

    counted = hits(FORWARD)
    ours = found(lambda: ptac.ops.linear_act(*args))
    assert counted.accelerated == 1
    from_work(LEAST)
    small = found(lambda: ptac.ops.linear_act(*args))
    assert counted.forwarded == {"not measured faster": 1}
    compiled = torch.compile(
        lambda: ptac.ops.linear_act(*args), fullgraph=True, backend="aot_eager"
    )
    with ptac.disabled():
        stock = found(lambda: net(x))
        torch.testing.assert_close(small, stock, rtol=0, atol=0)
        torch.testing.assert_close(found(compiled), stock, rtol=0, atol=0)
    torch.testing.assert_close(ours, stock)


def test_compiled_models_are_stocks(on: Any) -> None:
    net, x = layer(16, 8), torch.randn(4, 16, device="cuda")
    counted = hits(FORWARD)
    with autocasting():
        y = torch.compile(net, fullgraph=True, backend="aot_eager")(x)
        assert y.dtype == BF16
    assert counted.accelerated == 0


def called(net: nn.Module, x: Tensor) -> Tensor:
    """By name, which counts why it is refused."""
    return ptac.ops.linear_act(x, net[0].weight, net[0].bias, "relu")


REFUSED: dict[str, tuple[Callable[[nn.Module, Tensor], tuple[Any, ...]], str]] = {
    "float64": (lambda net, x: (x.double(), *doubled(net)), "dtype"),
    "empty": (lambda net, x: (x[:0], *net[0].parameters()), "empty"),
    "a transposed weight": (
        lambda net, x: (x, net[0].weight.t().contiguous().t(), net[0].bias), "layout"
    ),
    "a vector": (lambda net, x: (x[0], *net[0].parameters()), "shape"),
}  # fmt: skip


def doubled(net: nn.Module) -> list[Tensor]:
    return [p.double() for p in net[0].parameters()]


@pytest.mark.parametrize("case", REFUSED)
def test_refused(on: Any, case: str) -> None:
    """Nothing is cast for what stock will do."""
    make, why = REFUSED[case]
    args = make(layer(16, 8), torch.randn(4, 16, device="cuda"))
    counted = hits(FORWARD)

    def found(call: Callable[[], Tensor]) -> tuple[Tensor, list[str]]:
        emulation.stock_calls()
        with autocasting():
            y = call()
        calls = emulation.stock_calls()
        return y.detach().cpu(), calls

    y, calls = found(lambda: ptac.ops.linear_act(*args, "relu"))
    assert counted.forwarded == {why: 1}
    with ptac.disabled():
        expected, of_stock = found(lambda: torch.relu(nn.functional.linear(*args)))
    assert torch.equal(y, expected)
    assert y.dtype == expected.dtype
    assert calls == of_stock


def test_other_dtypes_of_autocast_are_stocks(on: Any) -> None:
    net, x = layer(16, 8), torch.randn(4, 16, device="cuda")
    counted = hits(FORWARD)
    before = torch.get_autocast_dtype("cuda")
    with autocasting():
        torch.set_autocast_dtype("cuda", torch.float32)
        try:
            assert called(net, x).dtype == torch.float32
        finally:
            torch.set_autocast_dtype("cuda", before)
    assert counted.forwarded == {"autocast": 1}


def test_nested_blocks(on: Any) -> None:
    net, x = layer(16, 8), torch.randn(4, 16, device="cuda")
    counted = hits(FORWARD)
    with autocasting():
        with autocasting(torch.float16):
            assert net(x).dtype == torch.float16
        with autocasting(enabled=False):
            assert net(x).dtype == torch.float32
        assert net(x).dtype == BF16
    with torch.autocast("cpu", BF16):
        assert called(net, x).dtype == torch.float32
    assert counted.accelerated == 3
    assert counted.forwarded == {"mode or transform active": 1}


def test_without_memory(on: Any) -> None:
    """Stock is asked, and says so itself."""
    net, x = layer(16, 8), torch.randn(4, 16, device="cuda")
    counted, allow = hits(FORWARD), emulation.load().emulated_allow_blocks
    allow.argtypes = (ctypes.c_int64,)
    for n in range(2):
        with autocasting():
            allow(n)
            with pytest.raises(RuntimeError, match="out of memory"):
                net(x)
            allow(2**63 - 1)
    assert counted.forwarded["no memory to work in"] == 2
    with autocasting():
        net(x)
    assert counted.accelerated == 1


def test_checks_repeat_the_call_as_it_was(on: Any) -> None:
    for grads in (True, False):
        with ptac.enable(FUSION, verify=1), torch.set_grad_enabled(grads):
            net, x = layer(16, 8), torch.randn(4, 16, device="cuda")
            forward, backward = hits(FORWARD), hits(BACKWARD)
            with autocasting():
                y = net(x)
                if grads:
                    y.sum().backward()
            assert (forward.accelerated, backward.accelerated) == (1, grads)
            assert (forward.failed, backward.failed) == (0, 0)


def test_capture(on: Any) -> None:
    """With products that ran before, and casts that are recorded as stock's are."""
    net, x = layer(16, 8), torch.randn(4, 16, device="cuda")
    grad = torch.ones(4, 8, device="cuda", dtype=BF16)

    def step() -> list[str]:
        since = len(emulation.launches())
        with autocasting(cache_enabled=False):
            y = net(x)
        y.backward(grad)
        return launched(since)

    function("ptac_lt_plan_clear", None)()
    with emulation.capturing(torch.Stream("cuda")):
        assert PLAIN not in step()
    expected = step()
    with emulation.capturing(torch.Stream("cuda")):
        assert step() == expected
