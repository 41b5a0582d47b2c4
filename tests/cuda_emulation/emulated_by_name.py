"""What operators called by name are beside torch's own: to autograd, and to misuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import emulation
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import ops

Call = Callable[[Tensor, Tensor], Tensor]
OPERATORS: dict[str, Call] = {
    "gated_act": ops.gated_act,
    "add_act": ops.add_act,
    "add_act, silu": lambda a, b: ops.add_act(a, b, "silu"),
    "add_norm": lambda a, b: ops.add_norm(a, b, a.shape[-1])[0],
    "dropout_add": ops.dropout_add,
}
STOCK: dict[str, Call] = {
    "gated_act": lambda a, b: F.silu(a) * b,
    "add_act": lambda a, b: F.relu(a + b),
    "add_act, silu": lambda a, b: F.silu(a + b),
    "add_norm": lambda a, b: F.layer_norm(a + b, a.shape[-1:]),
}


def leaves() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 64).cuda().requires_grad_() for _ in range(2)]


def counted(name: str) -> Any:
    return hits(name.partition(",")[0])


@pytest.mark.parametrize("name", OPERATORS)
def test_results_may_be_written_to(on: Any, name: str) -> None:
    """A result is a tensor of its own and no view; ReLU goes back by its result."""
    a, b = leaves()
    ours = counted(name)
    y = OPERATORS[name](a, b)
    assert ours.accelerated == 1
    assert not y._is_view()
    y.mul_(3)
    if name == "add_act":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return
    y.sum().backward()
    if name in STOCK:
        with ptac.disabled():
            c, d = leaves()
            STOCK[name](c, d).mul(3).sum().backward()
        for mine, theirs in ((a.grad, c.grad), (b.grad, d.grad)):
            torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_recomputed_when_the_switch_is_off(name: str) -> None:
    """Checkpoints compare what is saved: with a switch in between it is the same."""
    a, b = leaves()
    with ptac.enable(FUSION) as handle:
        ours = counted(name)
        y = checkpoint(OPERATORS[name], a, b, use_reentrant=False)
        assert ours.forwarded == {"hooks": 1}
        handle.disable()
        y.sum().backward()
    assert a.grad is not None


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_of_inference_mode(on: Any, name: str) -> None:
    """Those that a node of torch's need not save are taken there."""
    a, _ = leaves()
    with torch.inference_mode():
        b = torch.randn(4, 64).cuda()
    ours = counted(name)
    with torch.no_grad():
        OPERATORS[name](a, b)
    assert ours.accelerated == 1
    if name == "gated_act":  # as torch's product
        with pytest.raises(RuntimeError, match="saved for backward"):
            OPERATORS[name](a, b)
        return
    OPERATORS[name](a, b).sum().backward()
    assert ours.forwarded == {"gradient not supported": 1}
    assert a.grad is not None


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_no_tensor(on: Any, name: str) -> None:
    """Also beside a tensor of no dimensions, as what is missing may look."""
    for sizes in [(4, 64), (1,) if name == "add_norm" else ()]:
        x = torch.ones(sizes).cuda()
        with pytest.raises(TypeError):
            OPERATORS[name](x, None)  # type: ignore[arg-type]
        if name == "add_act":
            assert OPERATORS[name](x, 1.0).eq(2).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_weights_of_other_sizes_are_torchs_error(on: Any, norm: str) -> None:
    """As many elements are not enough."""
    x, w = torch.randn(4, 8, 8).cuda(), torch.ones(64).cuda()
    ours = hits("add_norm"), hits(norm)
    with pytest.raises(RuntimeError):
        ops.add_norm(x, x, (8, 8), w, norm=norm)
    with pytest.raises(RuntimeError):
        getattr(F, norm)(x, (8, 8), w)
    assert [c.accelerated for c in ours] == [0, 0]


@pytest.mark.parametrize("name", STOCK)
def test_checks_are_left_out_of_captures(name: str) -> None:
    """Copies of what a graph computes would end its capture."""
    a, b = (leaf.detach() for leaf in leaves())
    with ptac.enable(FUSION, verify=1):
        OPERATORS[name](a, b)
        ours = counted(name)
        emulation.stock_calls()
        with emulation.capturing(torch.Stream("cuda")):
            OPERATORS[name](a, b)
        assert emulation.stock_calls() == []
        assert ours.accelerated == 1
