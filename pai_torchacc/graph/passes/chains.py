"""Nodes of which each is the only reader of the one before: what may run as one."""

from __future__ import annotations

from pai_torchacc.graph.ir import Graph, Node, Value


class Readers:
    """Who reads what, in a graph that does not change meanwhile."""

    def __init__(self, graph: Graph):
        self._readers = graph.readers()
        self._results = graph.result_roots()

    def is_unread(self, value: Value | None) -> bool:
        """Nobody does, nor is it a result."""
        return value is None or (
            value not in self._readers and value not in self._results
        )

    def follower(self, node: Node) -> Node | None:
        """What alone reads a node's first output, as its first argument, whole.

        None where something else reads more of it than its own first output.
        """
        following = self.only(node.output)
        if (
            following is None
            or not following.args
            or following.args[0] is not node.output
            or not all(self.is_unread(value) for value in following.outputs[1:])
        ):
            return None
        return following

    def only(self, value: Value) -> Node | None:
        """The node that alone reads a value, which has memory and is no result."""
        nodes = self._readers.get(value, [])
        return nodes[0] if len(nodes) == 1 and value not in self._results else None


class Merger:
    """Puts one node in place of several, where the last of them was; all at the end."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._by: dict[int, Node | None] = {}

    def merge(self, name: str, parts: list[Node]) -> Node:
        """The node that takes their place."""
        last = parts[-1]
        merged = Node(name, (), {}, [last.outputs[0]], parts[0].where, list(parts))
        last.output.made_by = merged
        self._by.update({id(node): None for node in parts[:-1]})
        self._by[id(last)] = merged
        return merged

    def finish(self) -> None:
        """Change the graph."""
        nodes = (self._by.get(id(node), node) for node in self._graph.nodes)
        self._graph.nodes = [node for node in nodes if node is not None]
