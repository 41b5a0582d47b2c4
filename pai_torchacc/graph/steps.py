"""How a node of a graph is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pai_torchacc.graph.ir import Node, Value


@dataclass
class Step:
    """How one node, or a part of one, is run."""

    kind: str
    """``row``, ``conv``, ``norm``, ``linear``, ``sum``, ``gradients`` or ``call``."""
    parts: list[Node]
    inputs: list[Value]
    outputs: list[Value | None]
    activation: int = 0
    ends: list[Value] = field(default_factory=list)
    """Values that torch's allocator gave memory, and that nobody reads any more."""
    row: str | None = None
    """The kernel of ours that it runs."""
    is_told_where: bool = False
    """It writes into the arena; others allocate what they make."""
    about: Any = None
    """Of what a pass has found more than nodes tell: what it has said."""
    otherwise: list[Node] = field(default_factory=list)
    """Torch's operators, where a row gives back and the call cannot be made again."""
    why_stock: str = ""
    """Of a call: why no row of ours does it."""

    @property
    def name(self) -> str:
        """For people: ``conv + native_batch_norm + relu``."""
        return " + ".join(part.name for part in self.parts)


class RowsChanged(RuntimeError):
    """A plan was begun under other circumstances than it was ended."""
