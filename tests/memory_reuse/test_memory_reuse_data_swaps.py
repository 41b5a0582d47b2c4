"""Saved tensors to which a program gives other memory before backward.

As long as their objects live, gradients and errors are those of stock: of an input it
holds the tensor, of an output the memory.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import reusing
import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import memory_reuse

SMALL, LARGE = 8, 1 << 17

Made = tuple[Tensor, Tensor, Tensor]
"""A tensor that was saved, a loss and what it is differentiated for."""


def numbers(n: int) -> Tensor:
    return torch.arange(1.0, n + 1) / n


def leaf(n: int, *, requires_grad: bool = False) -> Made:
    x, w = numbers(n).requires_grad_(requires_grad), torch.ones(n, requires_grad=True)
    return x, (x * w).sum(), w


def of_input(make: Callable[[Tensor], Tensor]) -> Callable[[int], Made]:
    def made(n: int) -> Made:
        h, w = make(numbers(n).requires_grad_()), torch.ones(n, requires_grad=True)
        return h, (h * w).sum(), w

    return made


def of_output(make: Callable[[Tensor], Tensor]) -> Callable[[int], Made]:
    def made(n: int) -> Made:
        v = numbers(n).requires_grad_()
        h = make(v)
        return h, (h * h).sum() if make is squared else h.sum(), v

    return made


def squared(x: Tensor) -> Tensor:
    return x.exp()


def input_of_function(n: int) -> Made:
    v = numbers(n).requires_grad_()
    h = v * 1
    return h, reusing.SavesBoth.apply(h).sum(), v


KINDS: dict[str, Callable[[int], Made]] = {
    "leaf": leaf,
    "leaf with gradient": lambda n: leaf(n, requires_grad=True),
    "input": of_input(lambda v: v * 2),
    "input made by exp": of_input(torch.exp),
    "input that is a view": of_input(lambda v: (v * 2).view(1, -1)[0]),
    "input that is a second output": of_input(
        lambda v: torch.cat([v, v]).split(v.numel())[1]
    ),
    "output": of_output(torch.exp),
    "output and input": of_output(squared),
    "output in place in a view": of_output(lambda v: (v * 2).view(1, -1)[0].exp_()),
    "input of a function": input_of_function,
    "output of a function": of_output(lambda v: reusing.SavesBoth.apply(v * 1)),
}


def given(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def change(x: Tensor) -> None:
        x.data = make(x.data)

    return change


def without_gradient(change: Callable[[Tensor], object]) -> Callable[[Tensor], None]:
    def changed(x: Tensor) -> None:
        with torch.no_grad():
            change(x)

    return changed


def away_and_back(x: Tensor) -> None:
    old = x.data
    x.data = torch.zeros_like(old)
    x.data = old


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "data": given(torch.zeros_like),
    "data of another shape": given(lambda x: torch.stack([x, x + 1])),
    "data of another dtype": given(lambda x: x.double() * 3),
    "data looked at otherwise": given(lambda x: x.as_strided(x.shape, (0,))),
    "data and back": away_and_back,
    "set_": without_gradient(lambda x: x.set_(torch.zeros_like(x))),
    "set_ of data": lambda x: x.data.set_(torch.zeros_like(x)),
    "resize_": without_gradient(lambda x: x.resize_(x.numel() // 2)),
    "resize_ of data": lambda x: x.data.resize_(x.numel() * 2),
    "in place": without_gradient(lambda x: x.add_(1)),
    "unsqueeze_": without_gradient(lambda x: x.unsqueeze_(0)),
}


def outcome(
    make: Callable[[int], Made], change: Callable[[Tensor], Any], n: int
) -> Any:
    """The gradient, or what stands in its way."""
    tensor, loss, wanted = make(n)
    try:
        change(tensor)
        (gradient,) = torch.autograd.grad(loss, [wanted])
    except RuntimeError as error:
        return str(error)
    return gradient.dtype, gradient.tolist()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_as_in_stock(n: int, kind: str, change: str) -> None:
    stock = outcome(KINDS[kind], CHANGES[change], n)
    with reusing.reused(smallest=4 * LARGE):
        assert outcome(KINDS[kind], CHANGES[change], n) == stock


@pytest.mark.parametrize("make", [lambda v: v * 2, F.silu, lambda v: v + 1])
def test_small_inputs_that_nobody_else_has(make: Callable[[Tensor], Tensor]) -> None:
    """Their objects are held, as by stock."""

    def gradient() -> list[float]:
        h, loss, w = of_input(make)(SMALL)
        h.data = torch.zeros(SMALL)
        del h
        loss.backward()
        return w.grad.tolist()

    stock = gradient()
    with reusing.reused():
        assert gradient() == stock == [0.0] * SMALL


def test_outputs_are_not_held() -> None:
    """They would hold the node that holds them."""
    makes: list[Callable[[Tensor], Tensor]] = [
        torch.exp,
        torch.relu,
        lambda v: torch.linalg.inv(v.diag()),
        lambda v: (v * 2).view(1, -1)[0].exp_(),
        lambda v: torch.softmax(v, 0),
        lambda v: torch.linalg.svd(v.diag())[0],
        lambda v: torch.linalg.qr(v.diag())[0],
        lambda v: torch.linalg.cholesky(v.diag()),
        lambda v: torch.cumprod(v, 0),
        lambda v: v.pow(2).sqrt().sigmoid().tanh(),
        lambda v: F.layer_norm(v, v.shape),
        lambda v: torch.rsqrt(v).reciprocal_(),
        lambda v: F.scaled_dot_product_attention(*[v.view(1, 1, 2, 4)] * 3),
        gru,
        reusing.SavesBoth.apply,
    ]
    with reusing.reused():
        for i, make in enumerate(makes):
            gone = weakref.ref(make(numbers(SMALL).requires_grad_()))
            gc.collect()
            assert gone() is None, i


def gru(v: Tensor) -> Tensor:
    return torch.nn.GRU(8, 8)(v.view(1, 1, 8))[0]


@pytest.mark.parametrize("later", [False, True])
def test_what_follows_from_memory_that_was_given_away(later: bool) -> None:
    """Is what it was; and the input has what the program gave it."""

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        w = [torch.randn(512, 512).div(22).requires_grad_() for _ in range(8)]
        x, inputs = torch.randn(512, 512), []
        for i, p in enumerate(w):
            a = x @ p
            x = F.gelu(a)
            if i % 2:
                inputs.append(a)
                if not later:
                    a.data = torch.ones(512, 512)
        for a in inputs if later else ():
            a.data = torch.ones(512, 512)
        x.sum().backward()
        return [p.grad for p in w]

    stock = gradients()
    with reusing.reused() as saved:
        ours = gradients()
        assert saved.times("recompute") > 0
    assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))


def test_what_was_given_away_is_kept() -> None:
    """Nothing needs it, unless the program gives it back."""

    def gradient() -> Tensor:
        x, w = torch.zeros(LARGE), torch.ones(LARGE, requires_grad=True)
        loss = (x * w).sum()
        x.data = torch.ones(LARGE)
        for _ in range(3):
            others = numbers(LARGE).requires_grad_().exp().exp()
        del others
        loss.backward()
        return w.grad

    memory_reuse.reset(reusing.c)
    with reusing.reused() as saved:
        assert torch.equal(gradient(), torch.ones(LARGE))
        assert saved.times() == 0
    assert memory_reuse.reasons()["given other memory"] == 1
