"""A recorded forward: values, and the nodes that make them, in order.

Views are no nodes. A tensor that lies in the memory of another one is a value with a
base, of which it has sizes, strides and an offset of its own; what a program writes in
place is a new value, made by the operator that does not write in place. So a graph only
says what is computed from what, and a pass may move, merge or drop nodes as long as the
results stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False)
class Value:
    """A tensor of the recording: what it looks like, and where it comes from."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    """torch's."""
    made_by: Node | None = None
    """None: it is given to the graph, or kept by it."""
    base: Value | None = None
    """The value in whose memory it lies, which has none itself."""
    offset: int = 0
    """Of a view: elements from the base's first."""
    over: Value | None = None
    """What the same memory held before: it is a parameter's, say, which lives on."""

    @property
    def root(self) -> Value:
        """The value that has the memory."""
        return self.base or self

    @property
    def numel(self) -> int:
        """Its elements."""
        product = 1
        for size in self.sizes:
            product *= size
        return product

    def first(self) -> Value:
        """What its memory held at the beginning of the call."""
        value = self
        while value.over is not None:
            value = value.over
        return value

    def is_dense(self) -> bool:
        """There are no gaps between its elements, and none lies on another."""
        return self.end() == self.numel and 0 not in self.strides

    def is_whole(self) -> bool:
        """It has all elements of its memory, perhaps in another order."""
        root = self.root
        are_dense = self.end() == root.end() == self.numel == root.numel
        return self.base is None or (self.offset == 0 and are_dense)

    def end(self) -> int:
        """One more than its last element, counted from its first."""
        steps = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps if self.numel)

    def is_contiguous(self) -> bool:
        """Whether elements lie one behind the other, the last dimension fastest."""
        expected = 1
        for size, stride in zip(
            reversed(self.sizes), reversed(self.strides), strict=True
        ):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def is_matrix(self) -> bool:
        """Of two dimensions."""
        return len(self.sizes) == 2  # noqa: PLR2004

    def looks_like(self, other: Value) -> bool:
        """The same geometry and dtype."""
        mine = self.sizes, self.strides, self.dtype
        return mine == (other.sizes, other.strides, other.dtype)


@dataclass(eq=False)
class Function:
    """What a node may call where torch has no operator for it."""

    name: str
    _op: Any
    """Called with the node's arguments; it writes to none of them, unless the node says
    so."""
    is_pure: bool
    """It depends on nothing else, and draws no random numbers."""
    tags: tuple[Any, ...] = ()
    is_foreign: bool = False
    """It is the program's, and may do anything."""


GRADIENTS = Function("gradients", None, False)
"""Has parameters have gradients: ``args`` are the ones and the others, or None."""


@dataclass(eq=False)
class Node:
    """An operator of torch's, or several that run as one."""

    op: Any
    """An ``OpOverload`` of torch's, or a :class:`Function`; of several, a name."""
    args: tuple[Any, ...]
    """Values, numbers, lists of these, as the operator takes them."""
    kwargs: dict[str, Any]
    outputs: list[Value | None]
    """None: not a tensor, or not there."""
    where: str = ""
    """``file:line`` of the program."""
    parts: list[Node] = field(default_factory=list)
    """Of several: the operators, in order, each the only reader of the one before."""
    writes: list[Value] = field(default_factory=list)
    """What lives on and is written, as it is afterwards: values with an ``over``."""

    @property
    def name(self) -> str:
        """As torch's schemas have it, without ``aten::``: ``add.Tensor``."""
        if isinstance(self.op, str | Function):
            return self.op if isinstance(self.op, str) else self.op.name
        return str(self.op._schema.name).removeprefix("aten::") + (
            f".{self.op._schema.overload_name}" if self.op._schema.overload_name else ""
        )

    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        if isinstance(self.op, str):
            return False
        may = torch.Tag.nondeterministic_seeded in self.op.tags
        return may and (isinstance(self.op, Function) or self._drops_out())

    def _drops_out(self) -> bool:
        """Of an operator that may: its probability is not zero."""
        for i, argument in enumerate(self.op._schema.arguments):
            if argument.name == "dropout_p":
                given = self.args[i] if i < len(self.args) else argument.default_value
                return bool(self.kwargs.get("dropout_p", given) != 0)
        return True

    def is_pure(self) -> bool:
        """Whether it does nothing but compute its outputs from its arguments."""
        if isinstance(self.op, Function):
            return self.op.is_pure
        return (
            not self.writes
            and not self.is_random()
            and any(value is not None for value in self.outputs)
            and (isinstance(self.op, str) or self.op.namespace == "aten")
        )

    @property
    def output(self) -> Value:
        """The first output, which is a tensor."""
        value = self.outputs[0]
        assert value is not None
        return value

    def inputs(self) -> Iterator[Value]:
        """All values among the arguments, views as they are."""
        for node in self.parts or [self]:
            yield from values_in(node.args)
            yield from values_in(tuple(node.kwargs.values()))


@dataclass(eq=False)
class Graph:
    """A function of tensors, for one geometry of its inputs."""

    inputs: list[Value]
    """Tensors among the arguments, in order."""
    places: dict[tuple[int, str, str], Value]
    """Of modules: (module of the tree, ``_parameters`` or ``_buffers``, name)."""
    held: list[tuple[Any, Value]]
    """Other tensors that it reads, which live on."""
    nodes: list[Node]
    results: list[Value]
    constants: dict[Value, Any] = field(default_factory=dict)
    """Tensors that nobody else has."""

    def freeze(self, tensors: dict[tuple[int, str, str], Any]) -> None:
        """Read the modules' tensors, by their places, as constants from now on."""
        for place, value in self.places.items():
            self.constants[value] = tensors[place]
        self.places = {}

    def has_effects(self) -> bool:
        """Whether it does more than to compute its results."""
        return any(node.writes or node.op is GRADIENTS for node in self.nodes)

    def readers(self) -> dict[Value, list[Node]]:
        """For each value with memory: the nodes that read it, also through views."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs():
                nodes = found.setdefault(value.root, [])
                if not nodes or nodes[-1] is not node:
                    nodes.append(node)
        return found

    def result_roots(self) -> set[Value]:
        """The values in whose memory results lie, and gradients: others have them."""
        roots = {value.root for value in self.results}
        for node in self.nodes:
            if node.op is GRADIENTS:
                roots |= {value.root for value in values_in(node.args[1])}
        return roots

    def __str__(self) -> str:
        """The nodes, a line each, for people."""
        names: dict[Value, str] = {}
        for i, value in enumerate(self.inputs):
            names[value] = f"input{i}"
        for (module, home, name), value in self.places.items():
            names[value] = f"module{module}.{name}"
            names[value] += ".grad" if home == "gradients" else ""
        for i, (_, value) in enumerate(self.held):
            names[value] = f"held{i}"
        for i, value in enumerate(self.constants):
            names[value] = f"constant{i}"
        lines = []
        for i, node in enumerate(self.nodes):
            for k, value in enumerate(node.outputs):
                if value is not None:
                    names[value] = f"v{i}" if k == 0 else f"v{i}.{k}"
            names.update((v, _name_of(v.first(), names)) for v in node.writes)
            read = ", ".join(_name_of(value, names) for value in node.inputs())
            made = node.outputs[0] if node.outputs else None
            shape = "x".join(map(str, made.sizes)) if made is not None else ""
            lines.append(f"v{i} = {node.name}({read})  # {shape} {node.where}".rstrip())
        given = ", ".join(_name_of(value, names) for value in self.results)
        return "\n".join([*lines, f"return {given}"])


def _name_of(value: Value, names: dict[Value, str]) -> str:
    name = names.get(value.root, "?")
    return name if value.base is None else f"view of {name}"


def is_same(a: Any, b: Any) -> bool:
    """Two arguments are equal, or views of one value that look alike."""
    if not (isinstance(a, Value) and isinstance(b, Value)):
        return bool(a == b) and type(a) is type(b)
    return a.root is b.root and a.offset == b.offset and a.looks_like(b)


def values_in(arguments: Any) -> Iterator[Value]:
    """The values in arguments, also in lists and tuples among them."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from values_in(argument)


def replaced(arguments: Any, by: dict[Value, Value]) -> Any:
    """The same arguments, with values in place of others."""
    if isinstance(arguments, Value):
        return by.get(arguments, arguments)
    if isinstance(arguments, list | tuple):
        return type(arguments)(replaced(argument, by) for argument in arguments)
    return arguments


def replace_values(graph: Graph, by: dict[Value, Value]) -> None:
    """Have all readers, and the results, read others; views follow their bases.

    ``by`` maps values that have memory to such with the same elements, in order.
    """
    views: dict[Value, Value] = dict(by)
    for node in graph.nodes:
        for value in node.inputs():
            _follow(value, by, views)
    for value in graph.results:
        _follow(value, by, views)
    for node in graph.nodes:
        for one in node.parts or [node]:
            one.args = replaced(one.args, views)
            one.kwargs = {
                name: replaced(one.kwargs[name], views) for name in one.kwargs
            }
        for value in node.writes:
            if value.over in by:
                value.over = by[value.over].root
    graph.results = [views.get(value, value) for value in graph.results]


def _follow(value: Value, by: dict[Value, Value], views: dict[Value, Value]) -> None:
    if value.base is None or value.base not in by or value in views:
        return
    to = by[value.base]
    base, offset = (
        (to.base, to.offset + value.offset) if to.base else (to, value.offset)
    )
    views[value] = Value(value.sizes, value.strides, value.dtype, None, base, offset)
