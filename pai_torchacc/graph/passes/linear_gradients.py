"""The gradients of a Linear layer, and of the activation behind it, run as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pai_torchacc.graph.ir import GRADIENTS, Graph, Node, Value, replace_values
from pai_torchacc.graph.passes.activations import gradient_of
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten


@dataclass
class Found:
    """What a node named ``linear_gradients`` computes; see :func:`described`."""

    grad: Value
    """[m, n], of what the layer returned."""
    saved: Value | None = None
    """What the activation's gradient needs."""
    activation: int = 0
    x: Value | None = None
    weight: Value | None = None
    of_x: Value | None = None
    of_weight: Value | None = None
    of_bias: Value | None = None


def run(graph: Graph) -> None:
    """Merge the products with one gradient, and its sum, where that is a layer's."""
    readers, merger = Readers(graph), Merger(graph)
    by: dict[Value, Value] = {}
    done: set[Value] = set()
    for node in graph.nodes:
        if node.op is not _aten.mm.default or node.args[0].root in done:
            continue
        done.add(node.args[0].root)
        merged = _merged(node.args[0].root, readers)
        if merged is None:
            continue
        parts, found = merged
        if not readers.are_soon(parts):
            continue
        outputs = [found.of_x, found.of_weight, None]
        if found.of_bias is not None:
            n = found.of_bias.sizes[-1]
            vector = Value((n,), (1,), found.of_bias.dtype)
            by[found.of_bias] = outputs[2] = vector
            found.of_bias = vector
        name = "linear_gradients"
        merger.merge_at_first(name, parts, outputs, found)
    merger.finish()
    if by:
        replace_values(graph, by)


def _merged(grad: Value, readers: Readers) -> tuple[list[Node], Found] | None:
    """All that reads a gradient for a layer, in order, where that is worth merging."""
    found = Found(grad)
    parts = []
    matrix: Value | None = None
    for node in readers.of(grad):
        part = _take(node, grad, found, readers)
        if part is None:
            continue
        if matrix is not None and part.sizes != matrix.sizes:
            return None
        matrix = part
        parts.append(node)
    if matrix is None or found.of_weight is None or grad.dtype is not torch.float32:
        return None
    found.grad = matrix
    act = grad.made_by
    if act is not None and act.output is grad and len(parts) == len(readers.of(grad)):
        code, before, saved = gradient_of(act)
        if (
            code
            and not readers.is_result(grad)
            and _covers(before, before.root)
            and _covers(saved, saved.root)
            and before.numel == saved.numel == matrix.numel
            and before.dtype is saved.dtype is torch.float32
        ):
            parts.insert(0, act)
            found.activation, found.saved = code, saved
            found.grad = _matrix(before, matrix)
    return (parts, found) if len(parts) > 1 else None


def _take(node: Node, grad: Value, found: Found, readers: Readers) -> Value | None:
    """The gradient as a matrix, where a node computes one of a layer's of it."""
    if node.op is _aten.sum.dim_IntList:
        matrix, dims, keeps = (*node.args, False)[:3]
        if (
            found.of_bias is None
            and list(dims) == [0]
            and keeps
            and not node.kwargs
            and _is_matrix(matrix, grad)
            and all(reader.op is GRADIENTS for reader in readers.of(node.output))
        ):
            found.of_bias = node.output
            return matrix
        return None
    if node.op is not _aten.mm.default:
        return None
    left, right = node.args
    if left.root is not grad or right.root is grad or right.dtype is not grad.dtype:
        return None
    of_layer = [value.sizes[1] for value in (found.weight, found.x) if value]
    if of_layer and right.sizes[1] != of_layer[0]:
        return None  # another layer's
    if _is_matrix(left, grad) and found.of_x is None:
        found.weight, found.of_x = right, node.output
        return left
    turned = Value(left.sizes[::-1], left.strides[::-1], left.dtype, None, *_in(left))
    if _is_matrix(turned, grad) and found.of_weight is None:
        found.x, found.of_weight = right, node.output
        return turned
    return None


def _in(value: Value) -> tuple[Value, int]:
    return value.root, value.offset


def _is_matrix(value: Value, grad: Value) -> bool:
    """All of the gradient, row by row."""
    return value.root is grad and value.is_matrix() and _covers(value, grad)


def _covers(value: Value, root: Value) -> bool:
    return (
        value.offset == 0
        and value.numel == root.numel
        and value.is_contiguous()
        and root.is_contiguous()
    )


def _matrix(value: Value, like: Value) -> Value:
    if value.sizes == like.sizes:
        return value
    return Value(like.sizes, like.strides, value.dtype, None, *_in(value))
