"""Rows found by indices, for tests of their operators, and what these are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import contract
import switching
import torch
from torch import Tensor

import pai_torchacc as ptac

Draw = Callable[..., Tensor]
floats = contract.draw_with_extremes


def expanded(index: Tensor, *sizes: int) -> Tensor:
    """An index for each element of rows of such sizes."""
    return index.long().view(-1, *[1] * len(sizes)).expand(-1, *sizes)


def tables(draw: Draw, n_rows: int, width: int) -> list[Tensor]:
    """Dense, and with gaps between rows."""
    return [draw(n_rows, width), draw(n_rows, width + 2)[:, 1:-1]]


def terms(draw: Draw, n: int, width: int) -> list[Tensor]:
    """Dense, with gaps between rows, turned, and one row for all."""
    return [
        draw(n, width),
        draw(n, width + 1)[:, :-1],
        draw(width, n).t(),
        draw(1, width).expand(n, width),
    ]


Run = Callable[[], Any]
Calls = dict[str, int]
"""How many calls of operators are ours."""


def _hold(run: Run, stock: Any, calls: Calls) -> list[switching.Hits]:
    hits = [switching.hits(op) for op in calls]
    contract.exactly(run(), stock)
    assert [h.accelerated for h in hits] == [*calls.values()], hits
    return hits


def hold_bits(run: Run, calls: Calls) -> None:
    """With acceleration on, results are stock's to the bit."""
    with ptac.disabled():
        stock = run()
    _hold(run, stock, calls)


def hold_threads(ops: Sequence[str], run: Run, calls: Calls) -> None:
    """More of torch's threads give the bits of stock with as many as there are now.

    The fixture one_thread sets them back.
    """
    stock = run()
    for threads in (2, 3):
        torch.set_num_threads(threads)
        with switching.accelerated(*ops):
            _hold(run, stock, calls)


def hold_shadow_checks(ops: Sequence[str], run: Run, calls: Calls) -> None:
    """Every call is checked, and none of them fails."""
    stock = run()
    with switching.accelerated(*ops, verify=1):
        assert not any(h.failed for h in _hold(run, stock, calls))


def hold_refused(ops: Sequence[str], calls: list[Callable[[], object]]) -> None:
    """Calls are stock's, among them those that it answers with an error."""
    for number, call in enumerate(calls):
        stock = contract.said(call)
        with switching.accelerated(*ops):
            hits = [switching.hits(op) for op in ops]
            contract.exactly(contract.said(call), stock, f"call {number}")
            assert not any(h.accelerated for h in hits), (number, hits)


def hold_overlapping(ops: Sequence[str], calls: list[Callable[[Tensor], Any]]) -> None:
    """Calls that write into this memory are stock's, for one reason."""

    def said(call: Callable[[Tensor], Any]) -> object:
        y = floats(5, 3)
        try:
            return call(y)
        except RuntimeError as error:
            return str(error).splitlines()[0], y

    for call in calls:
        stock = said(call)
        with switching.accelerated(*ops):
            hits = [switching.hits(op) for op in ops]
            contract.exactly(said(call), stock)
            assert not any(h.accelerated for h in hits), hits
            assert sum(h.forwarded.get("overlapping memory", 0) for h in hits) == 1
