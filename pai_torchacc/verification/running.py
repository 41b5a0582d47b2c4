"""Runs of a model that leave it as it was, and what they give."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.verification.ties import Pools, ulp

Results = dict[str, Tensor]


def run(
    model: Any,
    inputs: tuple[Any, ...],
    backward: bool,
    pools: Pools,
    *,
    dtype: torch.dtype | None = None,
    nudge: int = 0,
    lowered: bool = False,
) -> Results:
    """Results of a copy of the model, in another floating type or nudged if asked.

    ``lowered`` runs it under torch's autocast to bfloat16, on the device of its
    tensors.
    """
    with torch.inference_mode(False), torch.set_grad_enabled(backward):
        parameters: dict[str, Tensor] = {}
        owner = getattr(model, "__self__", model)  # of a bound method
        if isinstance(owner, torch.nn.Module):
            copied = copy.deepcopy(owner)
            if dtype is not None:
                copied = copied.to(dtype)
            parameters = dict(copied.named_parameters())
            model = copied if owner is model else MethodType(model.__func__, copied)
        taken = [_map(i, lambda t: _fresh(t, dtype)) for i in inputs]
        named = {f"grad {n}": p for n, p in parameters.items()}
        for i, value in enumerate(taken):
            named |= {f"grad input {i}{n}": t for n, t in _tensors(value)}
        if nudge:
            _nudge(list(named.values()), nudge)
        tensors = [*parameters.values(), *(t for v in taken for _, t in _tensors(v))]
        place = "cuda" if is_on_cuda(tensors) else "cpu"
        with torch.autocast(place, torch.bfloat16) if lowered else nullcontext():
            output = model(*taken)
        results = {f"output{name}": t for name, t in _tensors(output)}
        if backward:
            pools.look(results.values())
            wanted = {name: t for name, t in named.items() if t.requires_grad}
            results |= _gradients(wanted, results.values())
        return {name: _dense(t.detach()) for name, t in results.items()}


def is_on_cuda(tensors: Iterable[Tensor]) -> bool:
    """Whether any of them lies on a CUDA device."""
    return any(t.is_cuda for t in tensors)


def _dense(t: Tensor) -> Tensor:
    """The same numbers in a layout and a type that can be compared."""
    if t.is_nested:
        return torch.cat([part.flatten() for part in t.unbind()])
    if t.is_quantized:
        return t.dequantize()
    t = t.to_dense()
    return t.float() if t.is_floating_point() and t.itemsize == 1 else t


def is_alike(found: Results, first: Results) -> bool:
    """Whether two runs gave the same names and shapes."""
    return found.keys() == first.keys() and all(
        found[name].shape == t.shape for name, t in first.items()
    )


def _nudge(tensors: list[Tensor], seed: int) -> None:
    """Move numbers by a unit in their last place, up or down or not."""
    draws = torch.Generator().manual_seed(seed)
    for t in tensors:
        if t.dtype is not torch.float32 or t.layout is not torch.strided:
            continue
        signs = torch.randint(-1, 2, t.shape, generator=draws)
        with torch.no_grad():
            t.copy_(t.double() * (1 + signs * ulp(t) / 2))


def _fresh(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    copied = tensor.detach().clone()
    if dtype is not None and copied.is_floating_point():
        copied = copied.to(dtype)
    return copied.requires_grad_(tensor.requires_grad)


def _gradients(wanted: Results, outputs: Iterable[Tensor]) -> Results:
    roots = [o.sum() for o in outputs if o.requires_grad and o.is_floating_point()]
    if not roots or not wanted:
        return {}
    found = torch.autograd.grad(sum(roots), list(wanted.values()), allow_unused=True)
    return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(v, change) for v in value)
    return value


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{name}[{i}]")
