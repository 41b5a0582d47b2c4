"""Batch normalization by running statistics, and the activation behind it, as one.

Where a convolution stands before it, it is that one's: see ``convolutions``.
"""

from __future__ import annotations

from pai_torchacc.graph.ir import Graph, Node, Value
from pai_torchacc.graph.passes import convolutions
from pai_torchacc.graph.passes.activations import BEHIND_NORMS, activation_of
from pai_torchacc.graph.passes.chains import Merger, Readers


def run(graph: Graph) -> None:
    """Merge each norm with what alone reads it."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if node.op not in convolutions.NORMS or not _is_ordinary(node):
            continue
        if not all(readers.is_unread(value) for value in node.outputs[1:]):
            continue
        following = readers.only(node.output)
        parts = [node]
        if (
            following is not None
            and activation_of(following, BEHIND_NORMS)
            and following.args[0] is node.output
        ):
            parts.append(following)
        merger.merge("norm", parts)
    merger.finish()


def _is_ordinary(node: Node) -> bool:
    return isinstance(node.args[3], Value) and isinstance(node.args[4], Value)
