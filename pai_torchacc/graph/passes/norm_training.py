"""Batch normalization by the batch with its activation, and the gradients of both.

Each way runs as one: the activation's gradient is computed from what the normalization
has read, and not from its result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pai_torchacc.graph.ir import Graph, Node, Value
from pai_torchacc.graph.passes.activations import (
    BEHIND_NORMS,
    activation_of,
    norm_gradient_of,
)
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten


@dataclass
class Kept:
    """What the gradients are computed from beside x and the weight."""

    numbers: Value
    """[4, channels], float32."""
    activation: int
    grad: Value
    """Of the result, as the second node reads it."""
    gradients: Node | None = None
    """The second node."""


def run(graph: Graph) -> None:
    """Merge each normalization whose statistics are read by its gradient alone."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if node.op is _aten.native_batch_norm.default and node.args[5]:
            _merge(node, readers, merger)
    merger.finish()


def _merge(norm: Node, readers: Readers, merger: Merger) -> None:
    y, mean, rstd = norm.outputs
    x = norm.args[0]
    if y is None or mean is None or rstd is None or x.dtype is not torch.float32:
        return
    backward = readers.only(mean, at_any_time=True)
    if (
        backward is None
        or backward.op is not _aten.native_batch_norm_backward.default
        or readers.of(rstd) != [backward]
        or readers.is_result(rstd)
        or backward.args[1].root is not x.root
        or not backward.args[7]
    ):
        return
    forward, way_back, activation = [norm], [backward], 0
    act, of_act = _around(y, backward, readers)
    if act is not None and of_act is not None:
        forward, way_back = [norm, act], [of_act, backward]
        activation = activation_of(act, BEHIND_NORMS)
    if not readers.is_soon(norm, forward[-1]) or not readers.is_soon(
        way_back[0], backward
    ):
        return
    numbers = Value((4, x.sizes[1]), (x.sizes[1], 1), torch.float32)
    kept = Kept(numbers, activation, way_back[0].args[0])
    merger.merge("norm_training", forward, [forward[-1].output, numbers], kept)
    outputs = list(backward.outputs)
    kept.gradients = merger.merge("norm_gradients", way_back, outputs, kept)


def _around(
    y: Value, backward: Node, readers: Readers
) -> tuple[Node | None, Node | None]:
    """The activation of a result, and its gradient, if nothing else reads either."""
    of_act = backward.args[0].made_by
    if (
        of_act is None
        or backward.args[0] is not of_act.output
        or readers.only(of_act.output) is not backward
        or readers.is_result(y)
    ):
        return None, None
    acts = [node for node in readers.of(y) if node is not of_act]
    if len(acts) != 1 or acts[0].args[0] is not y:
        return None, None
    code = activation_of(acts[0], BEHIND_NORMS)
    if code and norm_gradient_of(of_act, y, acts[0].output) == code:
        return acts[0], of_act
    return None, None
