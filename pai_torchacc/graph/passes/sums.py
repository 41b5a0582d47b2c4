"""A sum and the ReLU behind it, as at the end of a residual block, run as one."""

from __future__ import annotations

import torch

from pai_torchacc.graph.ir import Graph, Node, Value
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten


def run(graph: Graph) -> None:
    """Merge each ReLU into the sum of two tensors that it alone reads."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if not _is_plain_sum(node):
            continue
        following = readers.follower(node)
        if following is not None and following.op is _aten.relu.default:
            merger.merge("add_act", [node, following])
    merger.finish()


def _is_plain_sum(node: Node) -> bool:
    if node.op is not _aten.add.Tensor or node.kwargs:
        return False
    a, b = node.args
    return (
        isinstance(a, Value)
        and isinstance(b, Value)
        and a.sizes == b.sizes
        and a.strides == b.strides
        and a.dtype is b.dtype is torch.float32
    )
