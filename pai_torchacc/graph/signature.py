"""What a call was made with, and what it returned, apart from the tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from pai_torchacc.graph.refusals import CannotPlan

_CONSTANTS = (int, float, bool, str, bytes, complex, type(None), type(Ellipsis))

_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)

OF_TRAINING = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler)
"""Arguments that stand for themselves."""

Described = tuple[Any, ...]
"""As ``ptac_arguments_match()`` in ``csrc/bind/python/graph/guards.h`` reads it."""


def describe(object: Any, tensors: list[Tensor], owner: Any = None) -> Described:
    """Describe an argument; its tensors are added to the list.

    The owner of a method stands for itself.

    Raises
    ------
    CannotPlan
        It is nothing that two calls could be compared by.
    """
    if isinstance(object, Tensor):
        tensors.append(object)
        return (0,)
    kind = type(object)
    if kind in (list, tuple):
        return (2, kind, tuple(describe(item, tensors, owner) for item in object))
    if kind is dict:
        keys = tuple(object)
        if all(type(key) in (str, int) for key in keys):
            children = tuple(describe(item, tensors, owner) for item in object.values())
            return (3, keys, children)
    if kind in _CONSTANTS or isinstance(object, _OF_TORCH):
        return (1, object)
    if isinstance(object, OF_TRAINING) or (object is owner and owner is not None):
        return (4, object)
    raise CannotPlan(f"an argument is of the class {kind.__qualname__}")


class Containers:
    """Lists, tuples and dictionaries among arguments, with all that is in them now.

    Parameters
    ----------
    object : object
        Arguments that :func:`describe` has gone through.
    """

    def __init__(self, object: Any):
        self._items = {id(one): (one, _items_of(one)) for one in _containers_in(object)}

    def check(self, are_alike: bool, returned: Any) -> None:
        """Raise :class:`CannotPlan` where a call has changed one, or returns one.

        A replayed call would neither put its results there nor return that very one.
        ``are_alike``: the arguments are as they were described before the call.
        """
        if not are_alike:
            raise CannotPlan("forward changes its arguments")
        for one, before in self._items.values():
            now = _items_of(one)
            if len(now) != len(before) or any(map(operator.is_not, now, before)):
                raise CannotPlan("forward changes its arguments")
        for one in _containers_in(returned):
            if type(one) is not tuple and id(one) in self._items:
                raise CannotPlan("a container that is an argument is returned")


def _containers_in(object: Any) -> Iterator[Any]:
    if isinstance(object, list | tuple | dict):
        yield object
        for item in object.values() if isinstance(object, dict) else object:
            yield from _containers_in(item)


def _items_of(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container)


def key_of(
    described: Described, tensors: list[Tensor], of_modules: dict[Any, Tensor]
) -> Any:
    """Equal for calls that one plan may serve."""
    memories = {t.untyped_storage()._cdata for t in tensors if is_dense(t)}
    geometry = tuple(map(_geometry_of, (*tensors, *of_modules.values())))
    return _frozen(described), geometry, len(memories)


def objects_in(object: Any) -> list[Any]:
    """Modules, optimizers and the like among arguments."""
    return [leaf for leaf in tree_flatten(object)[0] if isinstance(leaf, OF_TRAINING)]


def _frozen(described: Any) -> Any:
    """The same of descriptions that fit the same objects."""
    if type(described) is tuple and described[:1] == (4,):
        return described[1]
    if type(described) is tuple:
        return tuple(map(_frozen, described))
    return repr(described)


def is_dense(tensor: Tensor) -> bool:
    """Others, of which none is planned, have neither strides nor storage."""
    is_torchs = type(tensor) in (Tensor, torch.nn.Parameter)
    return is_torchs and tensor.layout is torch.strided and not tensor.is_nested


def _geometry_of(tensor: Tensor) -> Any:
    if not is_dense(tensor):
        return type(tensor), id(tensor)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def results_of(
    returned: Any, is_step: bool
) -> tuple[list[Tensor], Callable[[Any], Any] | None]:
    """The tensors of what a call returned, and what makes the like of other tensors.

    None: the call returned a tensor. Anything but tensors is returned again as it is;
    what a training step returns as a number may be another one the next time.
    """
    if isinstance(returned, Tensor):
        return [returned], None
    leaves, spec = tree_flatten(returned)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for leaf in leaves:
        if not isinstance(leaf, Tensor) and type(leaf) not in _CONSTANTS:
            raise CannotPlan(f"a {type(leaf).__qualname__} is returned")
        if is_step and type(leaf) in (int, float, complex):
            raise CannotPlan("a number of Python's is returned")
    if type(returned) is tuple and all(isinstance(item, Tensor) for item in returned):
        return tensors, tuple
    return tensors, _rebuilder(leaves, spec)


def _rebuilder(leaves: list[Any], spec: TreeSpec) -> Callable[[Any], Any]:
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def rebuild(results: tuple[Tensor, ...]) -> Any:
        filled = list(constants)
        for place, tensor in zip(places, results, strict=True):
            filled[place] = tensor
        return tree_unflatten(filled, spec)

    return rebuild
