"""Nodes of which nothing reaches the results go."""

from __future__ import annotations

from pai_torchacc.graph.ir import Graph, Value


def run(graph: Graph) -> None:
    """Drop them, but for what does more than compute its outputs.

    Random numbers have to be drawn: the next ones depend on it.
    """
    needed: set[Value] = graph.result_roots()
    kept = []
    for node in reversed(graph.nodes):
        if node.is_pure() and not any(value in needed for value in node.outputs):
            continue
        kept.append(node)
        needed.update(value.root for value in node.inputs())
    graph.nodes = kept[::-1]
