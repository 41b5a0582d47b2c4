"""Channels weighed by a small network over their means, run as one.

J. Hu, L. Shen, G. Sun, "Squeeze-and-Excitation Networks", 2018: a mean over the places
of each channel, two convolutions of 1x1 with an activation between, a gate, and the
product with what was averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pai_torchacc.graph.ir import Graph, Node, Value
from pai_torchacc.graph.passes.activations import RELU, SILU, activation_of
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten

_GATES = {_aten.sigmoid.default: False, _aten.hardsigmoid.default: True}
_ONE, _NONE = [1, 1], [0, 0]


@dataclass(frozen=True)
class Found:
    """What is read, and how: ``csrc/ops/squeeze_excite/squeeze_excite.h``."""

    x: Value
    weights: tuple[Value, Value]
    biases: tuple[Value, ...]
    activation: int
    is_hard: bool

    def inputs(self) -> list[Value]:
        """In the kernels' order."""
        return [self.x, *self.weights, *self.biases]


def run(graph: Graph) -> None:
    """Merge each, where nobody else reads what lies between."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if node.op is not _aten.mul.Tensor or node.kwargs:
            continue
        for x, gate in (node.args, node.args[::-1]):
            parts = _parts(x, gate, node, readers)
            if parts and readers.are_soon(parts):
                merger.merge("squeeze_excite", parts, about=_found(parts, x))
                break
    merger.finish()


def _parts(x: Any, gate: Any, product: Node, readers: Readers) -> list[Node]:
    """The six operators, of which an activation may lack; none where it is not one."""
    if not _is_images(x) or not isinstance(gate, Value):
        return []
    outer = _maker(gate, readers)
    if outer is None or outer.op not in _GATES:
        return []
    second = _maker(outer.args[0], readers)
    if second is None or not _is_pointwise(second, x):
        return []
    middle = _maker(second.args[0], readers)
    between = [middle] if middle and activation_of(middle, {RELU, SILU}) else []
    first = _maker(middle.args[0], readers) if middle and between else middle
    if first is None or not _is_pointwise(first, x):
        return []
    mean = _maker(first.args[0], readers)
    has_bias = {conv.args[2] is not None for conv in (first, second)}
    if mean is None or not _is_mean_of(mean, x) or len(has_bias) != 1:
        return []
    return [mean, first, *between, second, outer, product]


def _found(parts: list[Node], x: Value) -> Found:
    convolutions = [part for part in parts if part.op is _aten.convolution.default]
    first, second = convolutions
    biases = [conv.args[2] for conv in convolutions if conv.args[2] is not None]
    is_bare = parts[2] is second
    return Found(
        x,
        (first.args[1], second.args[1]),
        tuple(biases),
        0 if is_bare else activation_of(parts[2], {RELU, SILU}),
        _GATES[parts[-2].op],
    )


def _maker(value: Any, readers: Readers) -> Node | None:
    """What makes a value that only one other operator reads."""
    if not isinstance(value, Value) or value.base is not None:
        return None
    return value.made_by if readers.only(value, at_any_time=True) else None


def _is_images(x: Any) -> bool:
    return (
        isinstance(x, Value)
        and len(x.sizes) == 4  # noqa: PLR2004
        and x.dtype is torch.float32
        and x.is_contiguous()
    )


def _is_mean_of(node: Node, x: Value) -> bool:
    if node.op is not _aten.mean.dim or node.kwargs or node.args[0] is not x:
        return False
    _, dims, *keeps = node.args
    return keeps == [True] and sorted(d % 4 for d in dims or ()) == [2, 3]


def _is_pointwise(node: Node, x: Value) -> bool:
    """A convolution of 1x1 of means, whose tensors look as kernels want them."""
    if node.op is not _aten.convolution.default:
        return False
    _, weight, bias, stride, padding, _, is_transposed, _, groups = node.args
    tensors = [weight] if bias is None else [weight, bias]
    return (
        all(isinstance(t, Value) and t.dtype is x.dtype for t in tensors)
        and tuple(weight.sizes[2:]) == (1, 1)
        and list(stride) == _ONE
        and list(padding) == _NONE
        and not is_transposed
        and groups == 1
    )
