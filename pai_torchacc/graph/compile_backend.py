"""``torch.compile(model, backend="ptac")``: plans behind Dynamo and AOTAutograd.

For programs that :func:`~pai_torchacc.optimize` refuses or that want gradients without
being one function: Dynamo looks at Python's code and guards what it has seen, and
AOTAutograd hands over graphs of torch's operators, forward and backward. Each is run by
plans like any function. Nothing is compiled here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pai_torchacc import _host, _switch


def ptac(graph: Any, inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """What torch.compile calls a backend.

    Switches ``graph_optimization`` on; which kernels run is up to the other switches.
    After ``disable()`` the graphs run operator by operator.
    """
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    if not _switch.is_active("graph_optimization"):
        _switch.enable_one("graph_optimization")
    made: Callable[..., Any] = aot_autograd(
        fw_compiler=_planned,
        bw_compiler=_planned,
        inference_compiler=_planned,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(graph, inputs, **options)
    return made


def _planned(graph: Any, inputs: list[Any]) -> Callable[[list[Any]], Any]:
    """A graph of operators, called with one list of arguments, as AOTAutograd does."""
    from functorch.compile import make_boxed_func

    from pai_torchacc.graph.planned import Planned

    c = _host.loaded()
    if c is None:
        return make_boxed_func(graph.forward)
    planned = Planned(
        c, graph.forward, None, "a compiled graph", "ignore", is_functional=True
    )
    return make_boxed_func(planned.entry)
