"""Errors for saved tensors that were changed or detached: torch's own texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reusing
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDE = 512


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(WIDE, WIDE, requires_grad=True) for _ in range(2))
    return x, w


INPLACE: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    # What is changed, and the result to differentiate.
    "an output": lambda x, w: (y := torch.sigmoid(x @ w), y @ w),
    "an input": lambda x, w: (y := x @ w, F.gelu(y) @ w),
    "a leaf's product": lambda x, w: (y := x * 2, y.square()),
    "a view": lambda x, w: ((y := F.relu(x @ w)).view(-1)[:3], y @ w),
    "a small one": lambda x, w: (y := x[:2, :2] * 1, y.square()),
    "a small output": lambda x, w: (y := x[:2, :2].exp(), y * 2),
    "what is recomputed": lambda x, w: (y := F.gelu(x @ w), y @ w),
    "a mask": lambda x, w: (m := x > 0, (x @ w).masked_fill(m, 0.0)),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", INPLACE)
def test_changes_in_place_are_torchs_errors(name: str, large: bool) -> None:
    def run() -> str:
        x, w = leaves()
        changed, out = INPLACE[name](x, w)
        if large:  # others get their turn
            for _ in range(3):
                out = F.relu(out)
        with torch.no_grad():
            changed.add_(changed)
        try:
            out.sum().backward()
        except RuntimeError as error:
            # Torch has two names for this one, and changes from one to the other.
            return str(error).replace("CPUBoolType", "torch.BoolTensor")
        return str(x.grad.sum())

    stock = run()
    with reusing.reused():
        assert run() == stock


def test_differentiable_changes_in_place_are_torchs_errors() -> None:
    def run(function: Callable[[Tensor], Tensor]) -> str:
        x, w = leaves()
        y = function(x @ w)
        z = y * w
        y.mul_(2)
        with pytest.raises(RuntimeError) as caught:
            (z + y).sum().backward()
        return str(caught.value)

    for function in (F.gelu, torch.sigmoid, lambda t: t * 3):
        stock = run(function)
        assert "modified by an inplace operation" in stock
        with reusing.reused():
            assert run(function) == stock


class Square(torch.autograd.Function):
    """Torch has no error where a function of Python saved what was detached."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def nested() -> Tensor:
    parts = [torch.arange(1.0, 1 + n) for n in (4, 8)]
    return torch.nested.nested_tensor(parts, requires_grad=True) * 1.0


def padded(x: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(x, 0.0)


def error_of(run: Callable[[], tuple[Tensor, Any]]) -> str:
    """Of a backward pass; what it returns beside its loss stays until then."""
    try:
        loss, _kept = run()
        loss.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "none"


def alike(run: Callable[[], tuple[Tensor, Any]]) -> str:
    stock = error_of(run)
    with reusing.reused(smallest=1 << 10):
        assert error_of(run) == stock
    return stock


# What is saved, what is computed with it.
DETACHED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "an input": (torch.clone, torch.sin),
    "an output and input": (torch.exp, torch.sin),
    "both inputs": (torch.clone, lambda a: a * a),
    "a convolution's input": (
        lambda x: x.view(1, 1, 2, -1) * 1,
        lambda a: F.conv2d(a, torch.ones(1, 1, 1, 1)),
    ),
    "a normalized input": (torch.clone, lambda a: F.layer_norm(a, a.shape)),
    "a nested one": (lambda _: nested(), lambda a: padded(a.sin())),
    "an output": (torch.exp, lambda a: a * 2),
    "what a function saved": (torch.clone, Square.apply),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("n", [4, 4096])
@pytest.mark.parametrize("name", DETACHED)
def test_detached_in_place(name: str, n: int) -> None:
    make, use = DETACHED[name]

    def run() -> tuple[Tensor, Any]:
        a = make(torch.linspace(0.5, 1, n).requires_grad_())
        b = use(a)
        a.detach_()
        return b, a

    legal = ("an output", "what a function saved")
    assert ("detached in-place" in alike(run)) == (name not in legal)


CHANGED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "an output": (torch.exp, lambda a: a * 2),
    "an input": (torch.clone, torch.sin),
    "an output of ReLU": (F.relu, lambda a: a + 1),
    "an input beside a weight": (
        torch.clone,
        lambda a: a * torch.ones(1, requires_grad=True),
    ),
    "the second input": (torch.clone, lambda a: (a + 1) * a),
    "a second output": (
        lambda x: torch.linalg.qr(x[:16].view(4, 4) + torch.eye(4))[1],
        torch.sin,
    ),
    "a view": (lambda x: x.clone().view(2, -1), torch.sin),
    "a nested input": (lambda _: nested(), lambda a: padded(a.sin())),
    "a nested output": (lambda _: F.relu(nested()), padded),
    "doubles": (lambda x: x.double() * 1, torch.sin),
    "a sparse one": (
        lambda x: x.detach().to_sparse(),
        lambda a: (torch.ones(a.shape).to_sparse().requires_grad_() * a).to_dense(),
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("n", [16, 4096])
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("name", CHANGED)
def test_errors_name_sizes_and_maker(name: str, stays: bool, n: int) -> None:
    """Also where nobody has the changed tensor any more."""
    make, use = CHANGED[name]

    def run() -> tuple[Tensor, Any]:
        a = make(torch.linspace(0.5, 1, n).requires_grad_())
        b = use(a)
        with torch.no_grad():
            a.mul_(2)
        return b, a if stays else None

    stock = alike(run)
    assert "modified by an inplace operation" in stock
    assert ("which is output 0 of" in stock) == (name != "a sparse one")


def test_modules_name_what_they_made() -> None:
    """``Sequential`` of a linear layer and ReLU, changed in place."""

    def run() -> tuple[Tensor, Any]:
        torch.manual_seed(0)
        h = nn.Sequential(nn.Linear(8, 8), nn.ReLU())(torch.rand(4, 8))
        with torch.no_grad():
            h.add_(1)
        return h, None

    assert "which is output 0 of Relu" in alike(run)
