"""Shadow checks of calls that go through Python: stock repeats one call in N.

``enable(verify=N)`` asks for them. Overrides of aten operators are checked in the
extension; these are the lean call paths and the optimizer steps. A row whose numbers
differ by more than its level allows is quarantined, and stock's numbers are handed out.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.adaptive_lr.step_protocol import REHEARSED


def run(
    op: str, ours: Callable[..., Any], args: tuple[Any, ...], stock: Callable[[], Any]
) -> Any:
    """The result of ours, or stock's where ours gives None or, checked, differs."""
    result = checked(op, ours, args, stock)
    return stock() if result is None else result


def checked(
    op: str, ours: Callable[..., Any], args: tuple[Any, ...], stock: Callable[[], Any]
) -> Any:
    """The result of ours, which may be None, or stock's where ours, checked, differs.

    Both return a tensor or a tuple of tensors; None in a tuple stands for a tensor that
    nobody wants, or that stock does not have. Of CUDA's, copies are compared, but not
    while a graph is captured; times of launches are none of kernels and not counted.
    """
    c = _host.load()
    if not c.shadow_due(op):
        return ours(*args)
    is_on_cuda = _are_on_cuda(args)
    if is_on_cuda and torch.cuda.is_current_stream_capturing():
        return ours(*args)
    start = time.perf_counter_ns()  # stock first: ours may write over its inputs
    with _host.muted(), torch.no_grad():
        expected = stock()
    middle = time.perf_counter_ns()
    result = ours(*args)
    end = time.perf_counter_ns()
    if result is None:
        return None
    a, b = (r if isinstance(r, tuple) else (r,) for r in (result, expected))
    pairs = zip(a, b, strict=True)
    wanted = [(x, y) for x, y in pairs if x is not None and y is not None]
    x, y = (tuple(pair[i].cpu() for pair in wanted) for i in range(2))
    times = (0, 0) if is_on_cuda else (end - middle, middle - start)
    agrees = c.shadow_settle(op, x, y, *times)
    return result if agrees else expected


def _are_on_cuda(args: tuple[Any, ...]) -> bool:
    """Whether there is a tensor of CUDA's among them, or in a tuple among them."""
    return any(
        _are_on_cuda(arg)
        if isinstance(arg, tuple)
        else isinstance(arg, Tensor) and arg.is_cuda
        for arg in args
    )


class Rehearsal:
    """Stock's step of one parameter group, on copies made before ours."""

    def __init__(
        self,
        c: Any,
        optimizer: Any,
        group: dict[str, Any],
        step: Callable[[Any], Any],
        init_group: Callable[..., Any],
        multiplier: float,
    ):
        self._c = c
        self._params = [p for p in group["params"] if p.grad is not None]
        self._state = optimizer.state
        copies = [torch.nn.Parameter(p.detach().clone()) for p in self._params]
        for copy, p in zip(copies, self._params, strict=True):
            copy.grad = p.grad.detach().clone()
        self._double = type(optimizer).__new__(type(optimizer))
        self._double.__dict__.update(optimizer.__dict__)
        setattr(self._double, REHEARSED, multiplier)
        self._double._init_group = functools.partial(init_group, self._double)
        self._double.param_groups = [{**group, "params": copies}]
        self._double.state = {
            copy: {
                k: v.clone() if isinstance(v, Tensor) else v
                for k, v in self._state.get(p, {}).items()
            }
            for copy, p in zip(copies, self._params, strict=True)
        }
        start = time.perf_counter_ns()
        with _host.muted(), torch.no_grad():
            step(self._double)
        self._t_stock_ns = time.perf_counter_ns() - start
        self._copies = copies

    def settle(self, op: str, t_ours_ns: int) -> None:
        """Compare, and put stock's numbers in place where ours differ."""
        pairs = list(self._pairs())
        ours, stock = (tuple(pair[i].cpu() for pair in pairs) for i in range(2))
        if not self._c.shadow_settle(op, ours, stock, t_ours_ns, self._t_stock_ns):
            with torch.no_grad():
                for x, y in pairs:
                    x.copy_(y)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for copy, p in zip(self._copies, self._params, strict=True):
            yield p, copy
            for key, value in self._double.state.get(copy, {}).items():
                if isinstance(value, Tensor):
                    yield self._state[p][key], value
