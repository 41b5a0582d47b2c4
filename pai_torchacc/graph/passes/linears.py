"""A product with a Linear layer's weight, and the activation behind it, run as one."""

from __future__ import annotations

import torch

from pai_torchacc.graph.ir import Graph, Node, Value, replace_values
from pai_torchacc.graph.passes.activations import BEHIND_PRODUCTS, activation_of
from pai_torchacc.graph.passes.chains import Merger, Readers

_aten = torch.ops.aten


def run(graph: Graph) -> None:
    """Merge each activation into the product that it alone reads."""
    readers, merger = Readers(graph), Merger(graph)
    by: dict[Value, Value] = {}
    for node in graph.nodes:
        if not is_linear(node):
            continue
        following = readers.only(node.output)
        parts = [node]
        if (
            following is not None
            and activation_of(following, BEHIND_PRODUCTS)
            and _reads_all(following, node.output)
        ):
            parts.append(following)
        merged = merger.merge("linear", parts)
        if len(parts) > 1:
            # The product has two dimensions, whatever a view makes of it.
            product = node.output
            result = Value(product.sizes, product.strides, product.dtype, merged)
            by[following.output] = _as_view(following.output, result)
            merged.outputs = [result]
    merger.finish()
    if by:
        replace_values(graph, by)


def is_linear(node: Node) -> bool:
    """A product with the weight of a layer, plus its bias.

    Layers have it transposed, or, as GPT-2's ``Conv1D``, as it is.
    """
    if node.op is _aten.mm.default:
        x, weight = node.args
    elif node.op is _aten.addmm.default and not node.kwargs:
        bias, x, weight = node.args
        if bias.sizes != weight.sizes[1:] or bias.base is not None:
            return False
    else:
        return False
    if x.dtype is not torch.float32 or weight.offset != 0:
        return False
    root = weight.root
    if weight is root:  # without a bias it may be a gradient's product
        has_bias = node.op is _aten.addmm.default
        return has_bias and root.made_by is None and root.is_contiguous()
    return (
        root.is_contiguous()
        and weight.sizes == root.sizes[::-1]
        and weight.strides == root.strides[::-1]
    )


def weight_of(product: Node) -> Value:
    """Of such a product, as a Linear layer has it: [columns, terms]."""
    weight: Value = product.args[-1]
    if weight.base is not None:
        return weight.base
    sizes, strides = weight.sizes[::-1], weight.strides[::-1]
    return Value(sizes, strides, weight.dtype, None, weight, 0)


def _reads_all(node: Node, value: Value) -> bool:
    """Its only tensor is all of that value, perhaps under other sizes."""
    read = list(node.inputs())
    return (
        len(read) == 1
        and read[0].root is value
        and read[0].numel == value.numel
        and read[0].offset == 0
        and read[0].is_contiguous()
        and value.is_contiguous()
    )


def _as_view(value: Value, base: Value) -> Value:
    return Value(value.sizes, value.strides, value.dtype, None, base, 0)
