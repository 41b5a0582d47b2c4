"""Nodes of which nothing reaches the results go."""

from __future__ import annotations

import torch

from pai_torchacc.graph.ir import Graph, Value


def run(graph: Graph) -> None:
    """Drop them; what draws random numbers stays, as the next draw depends on it."""
    needed: set[Value] = graph.result_roots()
    kept = []
    for node in reversed(graph.nodes):
        is_random = (
            not isinstance(node.op, str)
            and torch.Tag.nondeterministic_seeded in node.op.tags
        )
        if not is_random and not any(value in needed for value in node.outputs):
            continue
        kept.append(node)
        needed.update(value.root for value in node.inputs())
    graph.nodes = kept[::-1]
