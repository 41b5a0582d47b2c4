"""What a graph goes through between its recording and its plan.

A pass is a function that is given a :class:`~pai_torchacc.graph.ir.Graph` and changes
it in place. It may merge, move, replace and drop nodes as long as the results are what
they were; tests compare planned calls with eager ones.
"""

from __future__ import annotations

from collections.abc import Callable

from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.passes import (
    common_subexpressions,
    constants,
    convolutions,
    dead_code,
    gelus,
    linear_gradients,
    linears,
    losses,
    norm_training,
    norms,
    squeeze_excitations,
    sums,
)

Pass = Callable[[Graph], None]

_passes: dict[str, Pass] = {
    "constants": constants.run,
    "common_subexpressions": common_subexpressions.run,
    "dead_code": dead_code.run,
    "gelus": gelus.run,
    "squeeze_excitations": squeeze_excitations.run,
    "convolutions": convolutions.run,
    "norms": norms.run,
    "linears": linears.run,
    "sums": sums.run,
    "norm_training": norm_training.run,
    "linear_gradients": linear_gradients.run,
    "losses": losses.run,
}

_of_users: dict[str, Pass] = {}


def register_pass(function: Pass) -> Pass:
    """See :func:`pai_torchacc.graph.register_pass`."""
    _of_users[function.__name__] = function
    return function


def unregister_pass(function: Pass) -> None:
    """See :func:`pai_torchacc.graph.unregister_pass`."""
    del _of_users[function.__name__]


def run_of_users(graph: Graph) -> None:
    """Those that have been registered, in order."""
    for function in list(_of_users.values()):
        function(graph)


def run_ours(graph: Graph) -> None:
    """Then ours."""
    for function in _passes.values():
        function(graph)
