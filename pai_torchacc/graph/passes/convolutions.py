"""A convolution, the norm behind it, its activation and pooling run as one.

The norm's scale and shift are computed from its running statistics at each call, so
that nothing goes stale.
"""

from __future__ import annotations

from typing import Any

import torch

from pai_torchacc.graph.ir import Graph, Node, Value
from pai_torchacc.graph.passes.activations import BEHIND_CONVOLUTIONS, activation_of
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten

NORMS = (
    _aten.native_batch_norm.default,
    _aten._native_batch_norm_legit_no_training.default,
)


def run(graph: Graph) -> None:
    """Merge what follows each convolution with it."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if node.op is _aten.convolution.default and not node.args[6]:
            parts = _parts(node, readers)
            if len(parts) > 1 or is_frozen(node, graph):
                merger.merge("conv", parts)
    merger.finish()


def is_frozen(conv: Node, graph: Graph) -> bool:
    """Its weight stays, so that kernels may keep what they make of it."""
    weight = conv.args[1]
    return isinstance(weight, Value) and weight.root in graph.constants


def _parts(conv: Node, readers: Readers) -> list[Node]:
    parts = [conv]
    for is_next in (is_norm, _is_activation, _is_pool):
        following = readers.follower(parts[-1])
        if following is not None and is_next(following):
            parts.append(following)
    return parts


def is_norm(node: Node) -> bool:
    """Batch normalization by running statistics."""
    if node.op not in NORMS or (node.op is NORMS[0] and node.args[5]):
        return False
    return all(isinstance(v, Value) for v in node.args[3:5])


def _is_activation(node: Node) -> bool:
    return activation_of(node, BEHIND_CONVOLUTIONS) != 0


def _is_pool(node: Node) -> bool:
    if node.op is not _aten.max_pool2d_with_indices.default:
        return False
    _, size, stride, padding, dilation, ceil = _filled(node.args)
    window = (size, stride, padding, dilation, ceil)
    return window == ([2, 2], [2, 2], [0, 0], [1, 1], False)


def _filled(args: tuple[Any, ...]) -> list[Any]:
    defaults = [None, None, [], [0, 0], [1, 1], False]
    x, size, stride, padding, dilation, ceil = [*args, *defaults[len(args) :]]
    return [
        x,
        _pair(size),
        _pair(stride) or _pair(size),
        _pair(padding),
        _pair(dilation),
        ceil,
    ]


def _pair(numbers: Any) -> list[int]:
    return list(numbers) * 2 if len(numbers) == 1 else list(numbers)
