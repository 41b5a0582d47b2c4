"""What is computed twice from the same is computed once."""

from __future__ import annotations

from typing import Any

from pai_torchacc.graph.ir import Graph, Node, Value, replace_values


def run(graph: Graph) -> None:
    """Have readers of a repeated node read the first one.

    Results stay apart: a caller may write to one of them.
    """
    results = graph.result_roots()
    first: dict[Any, Node] = {}
    kept = []
    by: dict[Value, Value] = {}
    for node in graph.nodes:
        key = _key(node, by)
        before = first.get(key) if key is not None else None
        if before is not None and not any(v in results for v in node.outputs if v):
            pairs = zip(node.outputs, before.outputs, strict=True)
            by.update({mine: other for mine, other in pairs if mine and other})
            continue
        if key is not None:
            first[key] = node
        kept.append(node)
    graph.nodes = kept
    if by:
        replace_values(graph, by)


def _key(node: Node, by: dict[Value, Value]) -> Any:
    if isinstance(node.op, str) or not node.is_pure():
        return None
    try:
        key = node.op, _frozen(node.args, by), _frozen(sorted(node.kwargs.items()), by)
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(argument: Any, by: dict[Value, Value]) -> Any:
    if isinstance(argument, Value):
        root = by.get(argument.root, argument.root)
        return id(root), argument.sizes, argument.strides, argument.offset
    if isinstance(argument, list | tuple):
        return tuple(_frozen(item, by) for item in argument)
    if isinstance(argument, float | complex):
        return type(argument), repr(argument)  # zeros have signs
    return type(argument), argument
