"""One captured call: static inputs, a graph, and copies of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.graph.cuda import capturing
from pai_torchacc.graph.cuda.capturing import Pool
from pai_torchacc.graph.cuda.guards import Guards
from pai_torchacc.graph.memories import key_of
from pai_torchacc.graph.signature import results_of


class Inputs:
    """Tensors at addresses that stay, in place of a call's.

    Parameters
    ----------
    arguments : list of Tensor
        Of the call that is captured, each with memory of its own.
    of_modules : dict
        Modules' tensors by their storages: arguments that are one of these are read
        where they lie.
    """

    def __init__(self, arguments: list[Tensor], of_modules: dict[int, Tensor]):
        self._is_copied = [key_of(tensor) not in of_modules for tensor in arguments]
        with torch.inference_mode(False), torch.no_grad():
            self.tensors = [
                torch.empty_strided(
                    tensor.shape,
                    tensor.stride(),
                    dtype=tensor.dtype,
                    device=tensor.device,
                )
                if is_copied
                else tensor
                for tensor, is_copied in zip(arguments, self._is_copied, strict=True)
            ]
        self._elements = list(map(_elements_of, self.tensors))

    def copied(self) -> list[Tensor]:
        """Those that are ours."""
        return [
            t for t, is_copied in zip(self.tensors, self._is_copied, strict=True)
            if is_copied
        ]  # fmt: skip

    def are(self, arguments: list[Tensor]) -> bool:
        """Arguments that are read where they lie are the same."""
        return all(
            is_copied or given is tensor
            for given, tensor, is_copied in zip(
                arguments, self.tensors, self._is_copied, strict=True
            )
        )

    def fill(self, arguments: list[Tensor]) -> None:
        """Copy a call's tensors, on the current stream."""
        with torch.no_grad():
            for given, elements, is_copied in zip(
                arguments, self._elements, self._is_copied, strict=True
            ):
                if is_copied and given.data_ptr() != elements.data_ptr():
                    elements.copy_(_elements_of(given))

    def stand_in(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments like the call's, with these tensors."""
        tensors = iter(self.tensors)
        return _with_tensors(args, tensors), _with_tensors(kwargs, tensors)


class Outputs:
    """What a call returns, of which each replay gives a copy.

    Parameters
    ----------
    returned : object
        By the captured call.
    inputs : list of Tensor
        Static ones; where one is returned, a call returns its own argument.
    outside : set of int
        Storages of tensors that the call has not made, which are returned themselves.
    is_step : bool
        Numbers among the results may be others the next time.

    Raises
    ------
    CannotPlan
        It returns what cannot be given again.
    """

    def __init__(
        self, returned: Any, inputs: list[Tensor], outside: set[int], is_step: bool
    ):
        results, self._rebuild = results_of(returned, is_step)
        places = {id(tensor): i for i, tensor in enumerate(inputs)}
        self._places = [places.get(id(tensor)) for tensor in results]
        self._is_made = [key_of(tensor) not in outside for tensor in results]
        self._results = [
            tensor.detach() if is_made else tensor
            for tensor, is_made in zip(results, self._is_made, strict=True)
        ]
        keys = list(map(key_of, results))
        self._is_alone = [
            keys.count(key) == 1 and _is_dense(tensor)
            for key, tensor in zip(keys, results, strict=True)
        ]

    def made(self) -> list[Tensor]:
        """Those that the graph writes."""
        made = zip(self._results, self._is_made, strict=True)
        return [tensor for tensor, is_made in made if is_made]

    def given(self, arguments: list[Tensor]) -> Any:
        """What a call returns, on the current stream."""
        whole: dict[int, Tensor] = {}
        results = []
        with torch.no_grad():
            for i, tensor in enumerate(self._results):
                place = self._places[i]
                if place is not None:
                    results.append(arguments[place])
                elif not self._is_made[i]:
                    results.append(tensor)
                elif self._is_alone[i]:
                    results.append(tensor.clone())
                else:
                    results.append(_copy_of(tensor, whole))
        return results[0] if self._rebuild is None else self._rebuild(tuple(results))


class Captured:
    """A graph for calls of one kind.

    Parameters
    ----------
    key : tuple
        The first of it is equal for calls that it may be for.
    pool : Pool
        Where its tensors lie.
    guards : Guards
        What it was captured with.
    held : list of Tensor
        That it reads beside arguments and modules' tensors.
    written : list of Tensor
        That live on, and whose versions a call has to count.
    """

    def __init__(
        self,
        key: Any,
        pool: Pool,
        guards: Guards,
        held: list[Tensor],
        written: list[Tensor],
    ):
        self.key, self.guards = key, guards
        self._pool, self._held, self._written = pool, held, written
        self._graph: Any = None

    def capture(
        self, run: Callable[..., Any], call: Any, generators: list[Any], is_step: bool
    ) -> None:
        """Capture a call; what it returns is not there before a replay.

        Raises
        ------
        Exception
            Whatever the call, the capture or :class:`Outputs` raises. The guards can
            undo then what the call has done in Python.
        """
        of_modules = {key_of(entry[3]): entry[3] for entry in self.guards.tensors}
        self.inputs = Inputs(call.tensors, of_modules)
        self.inputs.fill(call.tensors)
        args, kwargs = self.inputs.stand_in(call.args, call.kwargs)
        self._graph, returned = capturing.layer.capture(
            self._pool, generators, lambda: run(*args, **kwargs)
        )
        known = (*of_modules.values(), *self._held, *self.inputs.tensors)
        outside = set(map(key_of, known))
        self._outputs = Outputs(returned, self.inputs.tensors, outside, is_step)
        del returned
        gradients = self.guards.gradients
        gradients.captured()
        self._known = self.inputs.copied() + self._outputs.made() + gradients.renewed()

    def replay(self, arguments: list[Tensor]) -> Any:
        """Make a call by the graph."""
        layer = capturing.layer
        with layer.replaying(self._pool, self._known):
            self.inputs.fill(arguments)
            layer.replay(self._graph)
            returned = self._outputs.given(arguments)
        self.guards.gradients.put()
        if written := [*self._written, *self.guards.gradients.written()]:
            torch.autograd.graph.increment_version(written)
        return returned


def _with_tensors(object: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with others in place of its tensors, in the order of describe()."""
    if isinstance(object, Tensor):
        return next(tensors)
    if type(object) in (list, tuple):
        return type(object)(_with_tensors(item, tensors) for item in object)
    if type(object) is dict:
        return {key: _with_tensors(item, tensors) for key, item in object.items()}
    return object


def _elements_of(tensor: Tensor) -> Tensor:
    """Each element once: of an expanded tensor a part."""
    for dimension, (size, stride) in enumerate(
        zip(tensor.shape, tensor.stride(), strict=True)
    ):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor.detach()


def overlaps(tensor: Tensor) -> bool:
    """Elements of it share memory otherwise than by being expanded."""
    extents = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1 and stride > 0
    )
    end = 0
    for stride, size in extents:
        if stride <= end:
            return True
        end += stride * (size - 1)
    return False


def _is_dense(tensor: Tensor) -> bool:
    """A clone of it lies as it does."""
    return not overlaps(tensor) and _extent_of(tensor) == tensor.numel()


def _extent_of(tensor: Tensor) -> int:
    """Elements of memory from its first one to behind its last one."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def _copy_of(tensor: Tensor, whole: dict[int, Tensor]) -> Tensor:
    """A view of a copy of all its memory, which results that share it share."""
    key = key_of(tensor)
    if key not in whole:
        storage = tensor.untyped_storage()
        copy = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        whole[key] = copy.set_(storage.clone())
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        whole[key].untyped_storage(),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
    )
