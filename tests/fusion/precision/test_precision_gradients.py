"""The room of reduced precision: a gradient has the precision of its forward call."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from lowering import needs_bf16, rounding
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def convolution_of(x: Tensor, w: Tensor) -> Any:
    return lambda: F.conv2d(x, w, padding=1)


def attention_of(q: Tensor, k: Tensor) -> Any:
    return lambda: F.scaled_dot_product_attention(q, k, k)


def training_calls() -> dict[str, tuple[Any, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    x, w = torch.randn(4, 16, 12, 12), torch.randn(24, 16, 3, 3)
    q, k = 3 * torch.randn(2, 4, 50, 32), 3 * torch.randn(2, 4, 70, 32)
    for t in (x, w, q, k):
        t.requires_grad_()
    return {
        "conv2d": (convolution_of(x, w), (x, w)),
        "attention": (attention_of(q, k), (q, k)),
    }


@contextmanager
def decided_by_the_user() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False):
        yield


@needs_bf16
@pytest.mark.parametrize("op", ["conv2d", "attention"])
def test_gradients_of_float32_are_in_float32(op: str) -> None:
    call, inputs = training_calls()[op]
    stock = torch.autograd.grad(call().square().sum(), inputs)
    with torch.no_grad(), rounding(op):
        lowered = call()

    with rounding(op, f"{op}_backward") as hits:
        with decided_by_the_user():
            y = call()
        with torch.no_grad():
            contract.exactly(call(), lowered)  # in bfloat16, leaving no mark on others
        ours = torch.autograd.grad(y.square().sum(), inputs)
        assert hits[f"{op}_backward"].accelerated == 0
        assert set(hits[f"{op}_backward"].forwarded) == {"forward call in float32"}
    contract.exactly(ours, stock)


@needs_bf16
@pytest.mark.parametrize("op", ["conv2d", "attention"])
def test_precision_of_each_of_many_graphs(op: str) -> None:
    """Interleaved, of the same tensors, from two threads, in any order."""
    call, inputs = training_calls()[op]
    n_grads = 2 if op == "conv2d" else 1
    graphs: list[tuple[bool, Tensor]] = []

    def forward() -> None:
        for i in range(6):
            if i % 3 == 1:
                with decided_by_the_user():
                    graphs.append((False, call()))
            else:
                graphs.append((True, call()))

    with rounding(op, f"{op}_backward") as hits:
        threads = [threading.Thread(target=forward) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        assert hits[op].accelerated == 8
        for is_rounded, y in (*graphs[::2], *reversed(graphs[1::2])):
            before = hits[f"{op}_backward"].accelerated
            torch.autograd.grad(y.square().sum(), inputs, retain_graph=True)
            torch.autograd.grad(y.square().sum(), inputs)
            made = hits[f"{op}_backward"].accelerated - before
            assert made == (2 * n_grads if is_rounded else 0)


@needs_bf16
@pytest.mark.parametrize("op", ["conv2d", "attention"])
def test_gradients_through_hooks_and_checkpoints(op: str) -> None:
    call, inputs = training_calls()[op]
    n_grads = 2 if op == "conv2d" else 1

    def checkpointed() -> Tensor:
        return checkpoint(call, use_reentrant=False)

    def saved_elsewhere() -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return call()

    with rounding(op, f"{op}_backward") as hits:
        for way in (saved_elsewhere, checkpointed):
            for is_rounded in (True, False):
                before = hits[f"{op}_backward"].accelerated
                if is_rounded:
                    y = way()
                else:
                    with decided_by_the_user():
                        y = way()
                torch.autograd.grad(y.square().sum(), inputs)
                made = hits[f"{op}_backward"].accelerated - before
                # Torch repeats checkpointed calls in a block of autocast.
                is_whole = not is_rounded or (way is checkpointed and op == "attention")
                assert made == (0 if is_whole else n_grads), way


@needs_bf16
def test_gradients_of_attention_in_float32_are_whole() -> None:
    """Where no row takes the gradient, forward is repeated for it in float32."""
    call, inputs = training_calls()["attention"]
    with rounding("attention", "attention_backward"):
        y = call()
        with decided_by_the_user():
            ours = torch.autograd.grad(y, inputs, torch.ones_like(y))
    y = call()
    contract.exactly(ours, torch.autograd.grad(y, inputs, torch.ones_like(y)))


@needs_bf16
def test_small_attention_carries_no_mark() -> None:
    q = torch.randn(1, 1, 8, 16, requires_grad=True)
    with rounding("attention", "attention_backward") as hits:
        F.scaled_dot_product_attention(q, q, q).sum().backward()
        assert hits["attention"].forwarded == {"values": 1}
        assert hits["attention_backward"].accelerated == 0
        with torch.no_grad():
            F.scaled_dot_product_attention(q, q, q)
        assert hits["attention"].accelerated == 1


@needs_bf16
def test_nodes_are_let_go() -> None:
    class Kept:
        pass

    call, inputs = training_calls()["conv2d"]
    with rounding("conv2d", "conv2d_backward") as hits:
        for is_held in (True, False):
            y, kept = call(), Kept()
            held = y.grad_fn if is_held else None
            y.grad_fn.metadata["kept"] = kept
            alive = weakref.ref(kept)
            torch.autograd.grad(y.sum(), inputs)
            del y, kept
            assert (alive() is not None) == is_held
            del held
            assert alive() is None
        assert hits["conv2d_backward"].accelerated == 4


@needs_bf16
def test_a_torch_whose_nodes_cannot_be_read() -> None:
    program = """
import torch, switching
from pai_torchacc.fusion import precision
x = torch.randn(2, 16, 12, 12, requires_grad=True)
w = torch.randn(24, 16, 3, 3, requires_grad=True)
ops = "conv2d", "conv2d_backward"
with switching.accelerated(*ops, row="bf16", numerics="fast"):
    hits = [switching.hits(op) for op in ops]
    torch.nn.functional.conv2d(x, w).sum().backward()
    print(precision._is_learnt, *(h.accelerated for h in hits))
"""
    for name in ("current_node", "next_node_number", "thread_number"):
        said = switching.python(program, PTAC_HIDE_SYMBOLS=name)
        assert said.split() == ["False", "1", "0"], name
    assert switching.python(program).split() == ["True", "1", "2"]
