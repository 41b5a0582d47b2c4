"""Gradients of torch's own samples under memory reuse, and tensors unlike others."""

from __future__ import annotations

import os
import random
import threading
from itertools import islice
from typing import Any

import contract
import opinfo
import pytest
import reusing
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.long

FULL = os.environ.get("PTAC_TEST_FULL") == "1"

ALWAYS = ("gelu", "silu", "mish", "softplus", "layer_norm", "relu", "max_pool2d")
"""Parts of names of operators whose nodes there are recipes or forms for."""


def operators() -> list[Any]:
    found = [op for op in op_db if op.supports_autograd]
    found = [op for op in found if opinfo.is_comparable(op.name)]
    if FULL:
        return found
    always = [op for op in found if any(part in op.name for part in ALWAYS)]
    others = [op for op in found if op not in always]
    return always + random.Random(1).sample(others, 80)


def settled_soon(function: Any) -> Any:
    """With large tensors saved behind it, so that its own get their turn."""

    def run(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        x = torch.ones(8, 8, requires_grad=True)
        for _ in range(3):
            x = x.square()
        return out

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", operators(), ids=opinfo.name_of)
def test_operator(op: Any) -> None:
    dtypes = op.supported_backward_dtypes("cpu")
    for dtype in (torch.float32, torch.complex64, torch.bfloat16):
        if dtype not in dtypes:
            continue
        samples = islice(opinfo.samples(op, dtype), None if FULL else 6)
        for number, sample in enumerate(samples):
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            function = settled_soon(op)
            stock = opinfo.run(function, args, kwargs)
            try:
                contract.exactly(opinfo.run(function, args, kwargs), stock)
            except AssertionError:
                continue  # stock does not give the same twice
            with reusing.reused(smallest=1):
                ours = opinfo.run(function, args, kwargs)
            contract.exactly(ours, stock, f"{op.name}, sample {number}")


class Tagged(Tensor):
    """A subclass that keeps its class."""


def odd_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    return {
        "subclass": x.as_subclass(Tagged),
        "meta": x.to("meta"),
        "sparse": x.relu().to_sparse(),
        "complex": torch.randn(6, 8, dtype=torch.complex64),
        "conjugate": torch.randn(6, 8, dtype=torch.complex64).conj(),
        "strided": torch.randn(12, 16)[::2, ::2],
        "expanded": torch.randn(6, 1).expand(6, 8),
        "empty": torch.randn(0, 8),
        "scalar": torch.tensor(2.0),
        "double": x.double(),
        "half": x.half(),
    }


@pytest.mark.parametrize("name", odd_tensors())
def test_odd_tensors(name: str) -> None:
    def run() -> list[Any]:
        leaf = odd_tensors()[name].detach().requires_grad_()
        y = leaf * leaf
        for _ in range(3):
            y = y * y
        y = (y.to_dense() if y.is_sparse else y).sum()
        (y.abs() if y.is_complex() else y).backward()
        grad = leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad
        return [type(grad), grad.shape, None if grad.is_meta else grad]

    stock = run()
    with reusing.reused(smallest=1):
        ours = run()
    assert ours[:2] == stock[:2]
    assert ours[2] is None or torch.equal(ours[2], stock[2])


def test_views_changed_in_place() -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(64, 64, requires_grad=True)
        y = x * 1
        y[:32].mul_(2)
        y.view(-1)[5:9].sigmoid_()
        for _ in range(4):
            y = F.relu(F.gelu(y)) * 0.1
            y[1:].exp_()
        y.sum().backward()
        return [x.grad]

    stock = run()
    with reusing.reused(smallest=1):
        assert torch.equal(run()[0], stock[0])


def test_many_threads_at_once() -> None:
    def work(results: dict[int, Tensor], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(64, 64, generator=generator).requires_grad_()
        for _ in range(20):
            y = x
            for _ in range(3):
                y = F.gelu(y @ x / 8)
            y.sum().backward()
        results[seed] = x.grad

    def all_of_them() -> dict[int, Tensor]:
        results: dict[int, Tensor] = {}
        threads = [threading.Thread(target=work, args=(results, i)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    stock = all_of_them()
    with reusing.reused(smallest=1) as saved:
        ours = all_of_them()
        assert saved.times("recompute") > 100
    assert stock.keys() == ours.keys()
    assert all(torch.equal(stock[i], ours[i]) for i in stock)
    assert reusing.current_bytes() == 0
