"""Batch normalization by running statistics, and the activation behind it, as one.

Where a convolution stands before it, it is that one's: see ``convolutions``.
"""

from __future__ import annotations

from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.passes.activations import BEHIND_NORMS, activation_of
from pai_torchacc.graph.passes.chains import Merger, Readers
from pai_torchacc.graph.passes.convolutions import is_norm


def run(graph: Graph) -> None:
    """Merge each norm with what alone reads it."""
    readers, merger = Readers(graph), Merger(graph)
    for node in graph.nodes:
        if not is_norm(node):
            continue
        if not all(readers.is_unread(value) for value in node.outputs[1:]):
            continue
        following = readers.follower(node)
        parts = [node]
        if following is not None and activation_of(following, BEHIND_NORMS):
            parts.append(following)
        merger.merge("norm", parts)
    merger.finish()
