"""Ties in max pooling: which of equal numbers is the largest, a last bit decides.

A convolution of a constant area gives equal numbers in stock, and in ours numbers that
differ in the last bit. Pooling then picks another position, and the gradient goes
there: a valid subgradient as well. So stock and float64 are run again with our picks
where these tie, and gradients are compared with those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pai_torchacc import _host

FAST = 5
"""How many times level close's factors level fast allows: ten times stock's error."""
CLOSE = {"rtol": 1e-3, "atol": 1e-5}
"""What is asked of results without a reference: a kernel gone wrong shows, no more."""

_OURS = "MaxPool2DWithIndicesBackward0"
"""The node of poolings that we may have computed."""
_N_DIMS = {
    _OURS: 2,
    "MaxPool3DWithIndicesBackward0": 3,
    "AdaptiveMaxPool2DBackward0": 2,
    "AdaptiveMaxPool3DBackward0": 3,
}
"""Nodes of max pooling, and how many dimensions a position stands for."""
_WINDOW = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def ulp(t: Tensor) -> float:
    """The distance of its numbers, as a share of them."""
    return torch.finfo(t.dtype).eps


class Pool(NamedTuple):
    """What a max pooling saw, and the positions that it picked, as rows."""

    x: Tensor
    picks: Tensor
    is_right: Tensor | bool
    """Where stock would have picked the same of what it saw."""

    def gap(self, other: Pool) -> Tensor:
        """How far what it picked lies above what another one picked here."""
        last = self.x.shape[-1] - 1  # of positions that a pool gone wrong may give
        places = (p.picks.clamp(0, last) for p in (self, other))
        picked, others = (self.x.gather(-1, at).double() for at in places)
        return (picked - others).abs()


@dataclass
class Pools:
    """The max poolings of a run, in their order."""

    forced: list[Tensor] | None = None
    """The positions that they are to pick; None for their own."""
    found: list[Pool] = field(default_factory=list)

    def look(self, outputs: Iterable[Tensor]) -> None:
        """Note them, or force their picks: between forward and backward."""
        nodes = _nodes(outputs)
        self.found = [_pool(node) for node in nodes]
        if self.forced is None:
            return
        for node, picks in zip(nodes, self.forced, strict=True):
            saved = node._saved_result1
            saved.data.copy_(picks.view_as(saved))  # behind autograd's back


def _nodes(outputs: Iterable[Tensor]) -> list[Any]:
    """Max poolings in the graphs of these, as they were called."""
    waiting = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [n for n, _ in node.next_functions if n is not None]
    pools = [node for node in seen if node.name() in _N_DIMS]
    return sorted(pools, key=lambda node: node._sequence_nr())


def _pool(node: Any) -> Pool:
    x, picks, n = node._saved_self, node._saved_result1, _N_DIMS[node.name()]
    is_right: Tensor | bool = True
    if node.name() == _OURS:
        window = [getattr(node, f"_saved_{name}") for name in _WINDOW]
        with _host.muted(), torch.no_grad():
            again = torch.ops.aten.max_pool2d_with_indices(x, *window)[1]
        is_right = (again == picks).flatten(-n)
    return Pool(x.detach().flatten(-n), picks.flatten(-n), is_right)


class Ties(NamedTuple):
    """Positions that ours picked otherwise than stock."""

    n_ties: int
    n_others: int
    """Where the numbers do not tie, or stock would not pick so either."""
    n_positions: int
    stock: list[Tensor]
    """What stock is to pick: ours where these tie, else its own."""
    exact: list[Tensor]
    """The same of float64."""

    def __str__(self) -> str:
        said = (
            f"max pooling picked {self.n_ties + self.n_others} of {self.n_positions} "
            f"positions otherwise than stock: {self.n_ties} ties"
        )
        if self.n_ties:
            said += ", for which gradients are compared at ours"
        return said + (f", {self.n_others} faults" if self.n_others else "")


def find(
    stock: list[Pool], ours: list[Pool], exact: list[Pool], numerics: str
) -> Ties | None:
    """Compare what the runs picked; None where all is the same, or the poolings differ.

    Numbers tie that are no further apart than the level allows two of them to be. That
    is asked of both sides.
    """
    shapes = [[p.picks.shape for p in pools] for pools in (stock, ours, exact)]
    if shapes[0] != shapes[1] or (exact and shapes[0] != shapes[2]):
        return None
    n_ties = n_others = 0
    forced: tuple[list[Tensor], list[Tensor]] = [], []
    for i, (s, o) in enumerate(zip(stock, ours, strict=True)):
        reference = exact[i] if exact else None
        allowed = 2 * _allowed(s.x, reference and reference.x, numerics)
        differ = s.picks != o.picks
        for side, to in zip((s, reference), forced, strict=True):
            if side is not None:
                is_tie = (side.gap(o) <= allowed) & (o.gap(side) <= allowed)
                is_tie &= o.is_right
                to.append(torch.where(is_tie, o.picks, side.picks))
        n_others += int((forced[0][-1] != o.picks).sum())
        n_ties += int(differ.sum())
    n_positions = sum(p.picks.numel() for p in stock)
    if not n_ties:
        return None
    return Ties(n_ties - n_others, n_others, n_positions, *forced)


def _allowed(s: Tensor, reference: Tensor | None, numerics: str) -> float:
    """How far the level lets the numbers of a tensor be from stock's."""
    if reference is None:
        return CLOSE["atol"] + CLOSE["rtol"] * _largest(s)
    more = FAST if numerics == "fast" else 1
    error = s.double() - reference
    return 3 * more * _largest(error) + 2 * ulp(s) * _largest(reference)


def _largest(t: Tensor) -> float:
    finite = t[t.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
