"""A module that is planned although nobody has asked for it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.planned import Call, Planned, everything
from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.signature import objects_in
from pai_torchacc.graph.unedited.agreement import agree
from pai_torchacc.graph.unedited.holding import reaches
from pai_torchacc.graph.unedited.observing import Observer
from pai_torchacc.graph.unedited.reading import Reading

_MOST_READINGS = 16
"""Times that calls are found to read more than those before."""

_MOST_TOLD = 64

refused: deque[tuple[str, str]] = deque(maxlen=_MOST_TOLD)
"""Classes of modules that run eagerly, and why: the last ones, for the report."""


@dataclass
class _First:
    """A call that has been recorded once."""

    graph: Graph
    constants: list[Any]
    """What it returned beside tensors."""


class Automatic(Planned):
    """The plans of a module that is proved plain.

    Of each kind of call two are recorded and watched. What they can have read is put
    under guard, and the second has to find it as the first has left it.

    Parameters
    ----------
    c : module
        The extension.
    root : Module
        In evaluation; called without gradients. It knows nothing of this, and is not
        kept alive: with it the plans go.
    """

    is_asked = False
    most_changes = 4

    def __init__(self, c: Any, root: nn.Module):
        self._first_of: dict[Any, _First] = {}
        self._reading: Reading | None = None
        self._n_readings = 0
        self._is_circular = False
        """What is under guard would keep the module alive."""
        self._reference = weakref.ref(root, lambda _: self.remove())
        nothing: Any = None
        super().__init__(c, nothing, root, type(root).__name__, "ignore")

    @property
    def _root(self) -> nn.Module:
        """The module, which is there while it is called."""
        root = self._reference()
        if root is None:
            raise RuntimeError("the module is gone")
        return root

    @_root.setter
    def _root(self, root: nn.Module) -> None:
        assert root is self._reference()

    @property
    def eager(self) -> Callable[..., Any]:
        """Made of the module that is there."""
        return self._root._call_impl

    @eager.setter
    def eager(self, nothing: None) -> None:
        """To be kept: that would be the module."""

    def install(self) -> None:
        """Have calls of the module come here."""
        self._c.candidates_plan(self._root, self.entry)

    def remove(self) -> None:
        """Have them be made as ever, and keep nothing alive that the module had."""
        self._c.candidates_forget(self.entry)
        self._recorded.clear()
        self._first_of.clear()
        self._reading = None
        self._names.bindings = []
        self._c.planned_reset(self.entry, [], [])
        everything.discard(self)

    def give_up(self, why: str) -> None:
        """Plan nothing of it; modules within it may be planned."""
        self._c.candidates_refuse(self._root)
        self.remove()
        if (self.name, why) not in refused:
            refused.append((self.name, why))

    # --- what Planned asks

    def _modules(self) -> list[nn.Module]:
        found = super()._modules()
        more = self._reading.modules if self._reading is not None else []
        return list(dict.fromkeys([*found, *more]))

    def _reset(self) -> None:
        super()._reset()
        self._is_circular = reaches(self, self._root)
        if self._is_circular:
            self._c.planned_reset(self.entry, [], [])

    def _why_never(self) -> str | None:
        if self._is_circular:
            return "what it holds leads back to it"
        return super()._why_never()

    def _begin_anew(self) -> None:
        self._first_of.clear()
        self._reading = None
        self._names.bindings = []
        super()._begin_anew()

    def _prepare(self, args: Any, kwargs: Any) -> Any:
        if objects_in((args, kwargs)):
            text = "a module or an optimizer is among the arguments"
            self._refuse("objects", CannotPlan(text))
            return None
        return super()._prepare(args, kwargs)

    def _way_of(self, call: Call, device: Any) -> Any:
        if device is not None:
            self._refuse(call.key, CannotPlan("only the CPU's calls are proved plain"))
            return None
        return super()._way_of(call, device)

    def _plan(self, key: Any, recorded: Any, of_modules: Any) -> None:
        """For arguments without attributes of the program's, which nobody asked for."""
        recorded.described = tuple(map(_bare, recorded.described))
        super()._plan(key, recorded, of_modules)

    def _observer(self) -> Observer | None:
        return Observer()

    def _prove(self, call: Call, observer: Observer, graph: Graph, result: Any) -> bool:
        used = {id(call.of_modules[place]) for place in graph.places}
        reading = Reading(observer.found, self._modules(), used)
        reading.check_arguments(call.tensors)
        reading.check_result(result)
        reading.modules.remove(self._root)  # which it is not to keep alive
        if not self._is_read_before(reading):
            return False
        constants = [leaf for leaf in tree_flatten(result)[0] if _is_constant(leaf)]
        first = self._first_of.pop(call.key, None)
        if first is None:
            self._first_of[call.key] = _First(graph, constants)
            return False
        if not agree(first.graph, graph) or repr(first.constants) != repr(constants):
            raise CannotPlan("it differs from call to call, for a reason not seen")
        if reaches([graph, result], self._root):
            raise CannotPlan("what it holds leads back to it")
        return True

    def _is_read_before(self, reading: Reading) -> bool:
        """All that it reads is under guard already; else it is from now on."""
        modules = self._modules()
        if self._reading is not None:
            reading.join(self._reading)
            if reading.is_like(self._reading):
                return True
        self._n_readings += 1
        if self._n_readings > _MOST_READINGS:
            raise CannotPlan("what it reads changes from call to call")
        self._reading = reading
        self._names.bindings = reading.bindings
        self._reset()
        if (why := self._why_never()) is not None:
            raise CannotPlan(why)
        if not self._c.planned_holds(self.entry):
            raise CannotPlan("what it reads changes while it is looked at")
        return len(self._modules()) == len(modules)  # whose tensors were known by place

    def _refuse(self, key: Any, refusal: CannotPlan) -> None:
        super()._refuse(key, refusal)
        self._first_of.pop(key, None)
        was_used = self._c.planned_counts(self.entry)[1] > 0
        is_of_moment = refusal.is_of_first or (key == "hooks" and was_used)
        if not self._recorded and not self._first_of and not is_of_moment:
            self.give_up(str(refusal))


def _bare(described: Any) -> Any:
    """A description, of tensors that have no attributes but torch's."""
    kind, *parts = described
    if kind == 0:
        return (5,)
    if kind in (2, 3):
        return kind, parts[0], tuple(map(_bare, parts[1]))
    return described


def _is_constant(leaf: Any) -> bool:
    return not isinstance(leaf, torch.Tensor)
