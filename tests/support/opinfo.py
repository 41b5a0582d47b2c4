"""torch's own samples of calls, and what comes of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import contract
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

# Results that are random, uninitialised, addresses or as memory happens to be aligned:
# stock's own differ from call to call.
NOT_COMPARABLE = (
    "empty", "rand", "normal", "multinomial", "dropout", "bernoulli", "exponential",
    "geometric", "cauchy", "uniform", "alpha_dropout", "rrelu", "data_ptr", "to_sparse",
    "resize", "svd_lowrank", "pca_lowrank", "lstsq",
)  # fmt: skip


def is_comparable(name: str) -> bool:
    return not any(part in name for part in NOT_COMPARABLE)


def name_of(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    variant = getattr(value, "variant_test_name", "")
    return f"{value.name}-{variant}" if variant else value.name


def run(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """Results and gradients of a call with fresh leaves, or what it raises.

    Only the CPU's generator is seeded. ``torch.manual_seed`` would keep the text of the
    whole call stack for GPUs, each time.
    """

    def fresh(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return value
        leaf = value.detach()
        if value.is_contiguous():
            leaf = leaf.clone()
        return leaf.requires_grad_(value.requires_grad)

    args, kwargs = tree_map(fresh, (args, kwargs))
    torch.default_generator.manual_seed(0)
    try:
        out = function(*args, **kwargs)
        outs = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
        leaves = [
            t
            for t in tree_flatten((args, kwargs))[0]
            if isinstance(t, Tensor) and t.requires_grad
        ]
        roots = [t for t in outs if t.requires_grad and t.numel()]
        grads: Any = []
        if roots and leaves:
            weights = [torch.ones_like(t) for t in roots]
            grads = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[:1]]
    return [[t.detach() for t in outs], list(grads)]


def samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """What ``op.sample_inputs`` gives, which seeks a unittest in all frames besides."""
    torch.default_generator.manual_seed(0)
    needs_grad = dtype in op.supported_backward_dtypes("cpu")
    yield from op.sample_inputs_func(op, "cpu", dtype, needs_grad)


def in_float64(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def is_close_enough(ours: Tensor, stock: Tensor, exact: Tensor) -> bool:
    """The largest error that level close allows, going by the whole result's size."""
    if not (ours.isfinite().all() and stock.isfinite().all()):
        return False
    error_of_stock = float((stock.double() - exact).abs().max())
    unit = torch.finfo(stock.dtype).eps * float(exact.abs().max())
    return float((ours.double() - exact).abs().max()) <= 3 * error_of_stock + 2 * unit


def compare(
    ours: Any,
    stock: Any,
    rounds: bool,
    where: str,
    exact: Callable[[], Any] | None = None,
) -> None:
    """What rounds differently may differ as torch.testing says, or as level close does.

    The latter where sums cancel, and against ``exact``, the same in float64.
    """
    if not rounds:
        contract.exactly(ours, stock, where)
        return
    mine, theirs = (tree_flatten(r)[0] for r in (ours, stock))
    assert len(mine) == len(theirs), where
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if not isinstance(b, Tensor):
            assert a == b, where
            continue
        try:
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=True)
        except AssertionError:
            if exact is None or a.stride() != b.stride() or a.dtype != b.dtype:
                raise
            assert is_close_enough(a, b, tree_flatten(exact())[0][i]), where
