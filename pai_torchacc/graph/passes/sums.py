"""A sum and the ReLU behind it, as at the end of a residual block, run as one."""

from __future__ import annotations

import torch

from pai_torchacc.graph.ir import Graph, Node
from pai_torchacc.graph.passes.chains import Readers, merge

_aten = torch.ops.aten


def run(graph: Graph) -> None:
    """Merge each ReLU into the sum of two tensors that it alone reads."""
    readers = Readers(graph)
    for node in list(graph.nodes):
        if not _is_plain_sum(node):
            continue
        following = readers.only(node.output)
        if (
            following is not None
            and following.op is _aten.relu.default
            and following.args[0] is node.output
        ):
            merge(graph, "add_act", [node, following])


def _is_plain_sum(node: Node) -> bool:
    if node.op is not _aten.add.Tensor or node.kwargs:
        return False
    a, b = node.args
    return (
        hasattr(b, "sizes")
        and a.sizes == b.sizes
        and a.strides == b.strides
        and a.dtype is b.dtype is torch.float32
    )
