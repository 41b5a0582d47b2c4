"""Our own operators: opcheck, agreement with torch, compiled and transformed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import native
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import opcheck

import pai_torchacc as ptac
from pai_torchacc import _C

ops = ptac.ops

ROWS = {
    "linear_act": "blas",
    "linear_act_backward": "blas",
    "cross_entropy": "scalar",
    "cross_entropy_backward": "scalar",
}
"""Rows that every machine has."""

STOCK = {
    "none": lambda z: z,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@contextmanager
def served() -> Iterator[None]:
    for op, row in ROWS.items():
        _C.pin(op, row)
    try:
        with ptac.enable():
            yield
    finally:
        for op in ROWS:
            _C.pin(op, None)


@pytest.fixture(params=["off", "on"])
def is_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    if request.param == "off":
        yield False
    else:
        with served():
            yield True


def accelerated(op: str) -> int:
    return _C.counters(op)[0]


def linear_inputs(*rows: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    sizes = ((*rows, 32), (48, 32), (48,))
    return tuple(torch.randn(s, requires_grad=True) for s in sizes)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("activation", "rows"),
    [(a, (64,)) for a in ops.ACTIVATIONS] + [("gelu", (3, 16)), ("relu", (0,))],
)
def test_linear_act_is_a_proper_operator(
    activation: str, rows: tuple[int, ...], is_on: bool
) -> None:
    x, w, b = linear_inputs(*rows)
    code = ops.ACTIVATIONS.index(activation)
    bias = None if activation == "silu" else b
    opcheck(torch.ops.pai_torchacc.linear_act.default, (x, w, bias, code))


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_linear_act_gives_what_torch_does(activation: str, is_on: bool) -> None:
    x, w, b = linear_inputs(64)
    before = accelerated("linear_act"), accelerated("linear_act_backward")
    ours = ops.linear_act(x, w, b, activation)
    stock = STOCK[activation](F.linear(x, w, b))
    torch.testing.assert_close(ours, stock)
    grad = torch.randn_like(ours)
    for a, e in zip(
        torch.autograd.grad(ours, (x, w, b), grad),
        torch.autograd.grad(stock, (x, w, b), grad),
        strict=True,
    ):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
    after = accelerated("linear_act"), accelerated("linear_act_backward")
    hits = tuple(a - b for a, b in zip(after, before, strict=True))
    assert hits == ((1, 1) if is_on else (0, 0))


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_linear_act_can_be_differentiated_twice(activation: str, is_on: bool) -> None:
    torch.manual_seed(0)
    x, w, b = (
        torch.randn(s, dtype=torch.float64, requires_grad=True)
        for s in ((3, 4), (2, 4), (2,))
    )

    def call(*inputs: Tensor) -> Tensor:
        return ops.linear_act(*inputs, activation)

    assert torch.autograd.gradcheck(call, (x, w, b))
    assert torch.autograd.gradgradcheck(call, (x, w, b))


@pytest.mark.parametrize("compiles", [False, True])
def test_linear_act_under_autocast(compiles: bool, is_on: bool) -> None:
    """It is what its parts are, in backward too."""
    inputs = linear_inputs(70)

    def found(call: Callable[..., Tensor]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = call(*inputs)
        assert y.dtype is torch.bfloat16
        return [y, *torch.autograd.grad(y.float().sin().sum(), inputs)]

    def by_name(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.linear_act(x, weight, bias, "gelu")

    compiled = torch.compile(by_name, fullgraph=True, backend="aot_eager")
    ours = found(compiled if compiles else by_name)
    with ptac.disabled():
        stock = found(lambda x, weight, bias: F.gelu(F.linear(x, weight, bias)))
    torch.testing.assert_close(ours, stock, rtol=0, atol=0)


def loss_inputs(kind: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    sizes = {"single": (10,), "images": (4, 10, 5)}.get(kind, (32, 10))
    x = torch.randn(sizes, requires_grad=True)
    if kind == "probabilities":
        return x, torch.softmax(torch.randn(sizes), 1)
    without_classes = sizes[:-1] if len(sizes) < 3 else (4, 5)
    return x, torch.randint(0, 10, without_classes)


@pytest.mark.parametrize("kind", ["indices", "probabilities", "images", "single"])
@pytest.mark.parametrize("reduction", ops.REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(kind: str, reduction: str, weighted: bool, is_on: bool) -> None:
    x, target = loss_inputs(kind)
    weight = torch.rand(10) if weighted else None
    code = ops.REDUCTIONS.index(reduction)
    before = accelerated("cross_entropy")
    if weighted == (reduction == "mean"):
        args = x, target, weight, code, -100, 0.1
        opcheck(torch.ops.pai_torchacc.cross_entropy.default, args)
    options = {"reduction": reduction, "label_smoothing": 0.1}
    ours = ops.cross_entropy(x, target, weight, **options)
    with ptac.disabled():
        stock = F.cross_entropy(x, target, weight, **options)
        below = torch.ops.pai_torchacc.cross_entropy(
            x, target, weight, code, -100, 0.1
        )[0]
    torch.testing.assert_close(ours, stock)
    grad = torch.rand_like(stock)
    expected = torch.autograd.grad(stock, x, grad)
    torch.testing.assert_close(torch.autograd.grad(ours, x, grad), expected)
    torch.testing.assert_close(torch.autograd.grad(below, x, grad), expected)
    took = accelerated("cross_entropy") - before
    assert (took > 0) == (is_on and kind in ("indices", "probabilities"))


def test_compiles_whole() -> None:
    x, w, b = linear_inputs(64)
    target = torch.randint(0, 48, (64,))

    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return ops.cross_entropy(ops.linear_act(x, w, b, "gelu"), target)

    expected = torch.autograd.grad(model(x, w, b), (x, w, b))
    backend = "inductor" if native.FULL else "aot_eager"  # 25 s of C++ compilers
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for on in (False, True):
        before = accelerated("linear_act"), accelerated("cross_entropy")
        with served() if on else ptac.disabled():
            found = torch.autograd.grad(compiled(x, w, b), (x, w, b))
        after = accelerated("linear_act"), accelerated("cross_entropy")
        torch.testing.assert_close(found, expected)
        assert (after[0] > before[0], after[1] > before[1]) == (on, on)


@pytest.mark.parametrize("of", ["target", "weight", "weight of indices"])
@pytest.mark.parametrize("logits", [True, False], ids=["with logits", "alone"])
def test_gradients_of_targets_and_weights(of: str, logits: bool, is_on: bool) -> None:
    """Cross-entropy has them for probabilities; for indices torch's error comes."""

    def program(cross_entropy: Callable[..., Tensor]) -> Any:
        torch.manual_seed(0)
        x = torch.randn(64, 48, requires_grad=logits)
        target = torch.rand(64, 48).softmax(1).requires_grad_(of == "target")
        if of == "weight of indices":
            target = torch.randint(0, 48, (64,))
        weight = torch.rand(48, requires_grad=of.startswith("weight"))
        try:
            cross_entropy(x, target, weight, label_smoothing=0.1).backward()
        except RuntimeError as error:
            return str(error)
        return [t.grad for t in (x, target, weight)]

    expected = program(F.cross_entropy)
    assert ("differentiable" in expected) == (of == "weight of indices")
    found = program(ops.cross_entropy)
    if of == "weight of indices":
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def test_the_bare_operator_has_no_gradient_of_targets() -> None:
    target = torch.rand(64, 48).softmax(1).requires_grad_()
    loss, _ = torch.ops.pai_torchacc.cross_entropy(torch.randn(64, 48), target)
    with pytest.raises(RuntimeError, match="gradients of its input only"):
        loss.backward()


def test_transforms(is_on: bool) -> None:
    x, w, b = linear_inputs(3, 16)
    target = torch.randint(0, 48, (16,))

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return ops.cross_entropy(ops.linear_act(x, w, b, "silu"), target)

    def stock(w: Tensor, x: Tensor) -> Tensor:
        return F.cross_entropy(F.silu(F.linear(x, w, b)), target)

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0))(w, x)
    expected = torch.vmap(torch.func.grad(stock), (None, 0))(w, x)
    torch.testing.assert_close(per_sample, expected)


def test_wrong_use() -> None:
    x, w, b = linear_inputs(4)
    with pytest.raises(ValueError, match="none, relu, gelu"):
        ops.linear_act(x, w, b, "swish")
    with pytest.raises(ValueError, match="none, mean, sum"):
        ops.cross_entropy(x, torch.zeros(4, dtype=torch.long), reduction="all")
    with pytest.raises(RuntimeError):
        ops.linear_act(x, w[:, :3], b)
    with pytest.raises((RuntimeError, IndexError)):
        ops.cross_entropy(x, torch.full((4,), 99))
