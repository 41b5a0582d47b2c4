"""Recurrent layers of a graph: their arguments as torch's functions take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pai_torchacc.graph.ir import Function, Node, Value

NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_PADDED = 9
"""Arguments of a padded sequence."""


@dataclass(frozen=True)
class Recurrence:
    """All layers of one, over a padded sequence."""

    options: tuple[Any, ...]
    """As ``plan_recurrent`` of the extension takes them."""
    tensors: tuple[Value | None, ...]
    """x, h and, of an LSTM, c."""
    weights: tuple[Value, ...]

    def inputs(self) -> list[Value]:
        """All that is read."""
        return [v for v in (*self.tensors, *self.weights) if v is not None]


def recurrence_of(node: Node) -> Recurrence | None:
    """What a node runs, if it is one that draws no random numbers."""
    if not isinstance(node.op, Function) or node.op.name not in NAMES:
        return None
    if len(node.args) != _PADDED or node.kwargs or not isinstance(node.args[3], bool):
        return None
    x, states, weights, has_biases, n_layers, dropout, train, both, first = node.args
    h, c = states if node.op.name == "lstm" else (states, None)
    values = [x, h, *weights, *([c] if node.op.name == "lstm" else [])]
    if (dropout and train) or not all(isinstance(v, Value) for v in values):
        return None
    if len(weights) != n_layers * (1 + both) * (4 if has_biases else 2):
        return None  # of projections, too
    options = (node.op.name, n_layers, 1 + bool(both), int(has_biases), int(first))
    return Recurrence(options, (x, h, c), tuple(weights))
