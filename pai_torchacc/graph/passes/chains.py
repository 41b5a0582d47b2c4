"""Nodes of which each is the only reader of the one before: what may run as one."""

from __future__ import annotations

from typing import Any

from pai_torchacc.graph.ir import Graph, Node, Value


class Readers:
    """Who reads what, in a graph that does not change meanwhile."""

    def __init__(self, graph: Graph):
        self._readers = graph.readers()
        self._results = graph.result_roots()
        self._epochs: dict[int, int] = {}
        self._places: dict[int, int] = {}
        epoch = 0
        for i, node in enumerate(graph.nodes):
            self._places[id(node)] = i
            epoch += bool(node.writes)
            self._epochs[id(node)] = epoch

    def of(self, value: Value) -> list[Node]:
        """The nodes that read a value or a view of it, in order."""
        return self._readers.get(value, [])

    def is_result(self, value: Value | None) -> bool:
        """Or the value in whose memory a result lies."""
        return value in self._results

    def are_soon(self, nodes: list[Node]) -> bool:
        """All may be where the first is: what they read is there, and stays."""
        first = self._places[id(nodes[0])]
        there = {value.root for value in nodes[0].inputs()}
        there |= {value for node in nodes for value in node.outputs if value}
        return all(
            self._epochs[id(node)] == self._epochs[id(nodes[0])]
            and all(
                value.root in there or self._is_before(value.root.made_by, first)
                for value in node.inputs()
            )
            for node in nodes[1:]
        )

    def _is_before(self, maker: Node | None, place: int) -> bool:
        return maker is None or self._places.get(id(maker), place) < place

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

    def only(self, value: Value, at_any_time: bool = False) -> Node | None:
        """The node that alone reads a value, which has memory and is no result.

        Unless told, with nothing between the two by which either could not be moved.
        """
        nodes = self._readers.get(value, [])
        if len(nodes) != 1 or value in self._results:
            return None
        may_move = at_any_time or self.is_soon(value.made_by, nodes[0])
        return nodes[0] if may_move else None

    def is_soon(self, maker: Node | None, reader: Node) -> bool:
        """The maker may be moved to where its reader is: what lives on is as it was."""
        epoch = self._epochs.get(id(maker))
        return epoch is None or epoch == self._epochs[id(reader)]


class Merger:
    """Puts one node in place of several, all at the end."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._by: dict[int, Node | None] = {}

    def merge(
        self,
        name: str,
        parts: list[Node],
        outputs: list[Value | None] | None = None,
        about: Any = None,
    ) -> Node:
        """The node that takes their place, where the last of them was.

        Its outputs are the last one's first, unless told.
        """
        return self._merge(name, parts, parts[-1], outputs, about)

    def merge_at_first(
        self, name: str, parts: list[Node], outputs: list[Value | None], about: Any
    ) -> Node:
        """Likewise where the first was."""
        return self._merge(name, parts, parts[0], outputs, about)

    def _merge(
        self,
        name: str,
        parts: list[Node],
        at: Node,
        outputs: list[Value | None] | None,
        about: Any,
    ) -> Node:
        outputs = parts[-1].outputs[:1] if outputs is None else outputs
        args = () if about is None else (about,)
        merged = Node(name, args, {}, outputs, parts[0].where, list(parts))
        merged.writes = [value for part in parts for value in part.writes]
        for value in filter(None, outputs):
            value.made_by = merged
        self._by.update({id(node): None for node in parts})
        self._by[id(at)] = merged
        return merged

    def finish(self) -> None:
        """Change the graph."""
        nodes = (self._by.get(id(node), node) for node in self._graph.nodes)
        self._graph.nodes = [node for node in nodes if node is not None]
