"""Operators of ours in torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host

_library = torch.library.Library("pai_torchacc", "FRAGMENT")

_AUTOCASTS = "AutocastCPU", "AutocastCUDA"


def define(
    schema: str,
    stock: Callable[..., Any],
    kernels: dict[str, Callable[..., Any] | None],
    backward: Callable[..., Any],
    setup_context: Callable[..., None],
    *,
    fake: Callable[..., Any] | None = None,
    is_random: bool = False,
) -> None:
    """Define an operator by torch's own operators, and how it is served.

    Parameters
    ----------
    schema : str
        Without the namespace.
    stock : callable
        The same by torch's operators, which autocast casts for, unless ``kernels`` says
        otherwise; and what fake tensors give, unless ``fake`` does.
    kernels : dict
        By dispatch key: by a row where one takes the call, else by ``stock``. None for
        an autocast that does nothing.
    backward, setup_context : callable
        As of ``torch.library.register_autograd``.
    fake : callable, optional
        Outputs of the right sizes and dtypes.
    is_random : bool
        It draws numbers, so that no pass may compute it twice or reorder it.
    """
    name = f"pai_torchacc::{schema.partition('(')[0]}"
    tags = (torch.Tag.nondeterministic_seeded,) if is_random else ()
    _library.define(schema, tags=tags)
    for key, kernel in {**dict.fromkeys(_AUTOCASTS, stock), **kernels}.items():
        if kernel is not None:
            _library.impl(name, kernel, key)
    _library.impl(name, stock, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake or stock, lib=_library)
    torch.library.register_autograd(
        name, backward, setup_context=setup_context, lib=_library
    )


def first_result(name: str, stock: Callable[..., Any], *args: Any) -> Tensor:
    """By the extension where it takes the call, else by the operator or its parts."""
    if not torch.compiler.is_compiling():
        result: Tensor | None = _host.ask(name, *args)
        if result is not None:
            return result
        if torch._C._are_functorch_transforms_active():
            first: Tensor = stock(*args)[0]
            return first
    found: Tensor = getattr(torch.ops.pai_torchacc, name)(*args)[0]
    return found
