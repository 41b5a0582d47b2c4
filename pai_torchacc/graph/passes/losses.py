"""Cross entropy and its gradient, of four operators, run as two kernels."""

from __future__ import annotations

import torch

from pai_torchacc.graph.ir import Graph, Node, Value, is_same
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten


def run(graph: Graph) -> None:
    """Merge each loss whose parts nobody else reads."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if node.op is _aten._log_softmax.default:
            _merge(node, readers, merger)
    merger.finish()


def _merge(softmax: Node, readers: Readers, merger: Merger) -> None:
    x, dim, to_float = softmax.args
    logs = softmax.output
    found = readers.of(logs)
    ops = [
        _aten.nll_loss_forward.default,
        _aten.nll_loss_backward.default,
        _aten._log_softmax_backward_data.default,
    ]
    if not found or not readers.is_soon(softmax, found[0]):
        return
    if not x.is_matrix() or dim not in (1, -1) or to_float or readers.is_result(logs):
        return
    if [node.op for node in found] != ops:
        return
    loss, back, gradient = found
    weight_sum = loss.outputs[1]
    if (
        loss.args[0] is not logs
        or back.args[1] is not logs
        or not all(map(is_same, loss.args[1:], back.args[2:6]))
        or readers.only(back.output) is not gradient
        or gradient.args[:2] != (back.output, logs)
        or (weight_sum is not None and readers.of(weight_sum) != [back])
        or back.args[6] is not weight_sum
        or readers.is_result(weight_sum)
        or back.args[0].sizes != loss.output.sizes
        or x.dtype is not torch.float32
    ):
        return
    p = Value(x.sizes, x.strides, x.dtype)
    merger.merge("cross_entropy", [softmax, loss], [loss.output, p])
    merger.merge("cross_entropy_gradient", [back, gradient], [gradient.output], p)
