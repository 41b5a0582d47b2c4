"""``run --device cpu`` and ``launch --device cpu``: scripts that name CUDA, on the CPU.

What such scripts say to place models and tensors means the CPU, NCCL means Gloo.
``torch.cuda.is_available()`` stays false, and a ``torch.device("cuda")`` stays what it
is until something is put there. docs/distributed.md lists what is covered.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from pai_torchacc import _frames
from pai_torchacc.fusion.foreign import Yielding

VARIABLE = "PTAC_DEVICE"
"""``cpu`` where ``run`` or ``launch`` was told so; its children find it."""

FACTORIES = (
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "ones"),
    *("rand", "randint", "randn", "randperm", "tensor", "zeros"),
    *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"),
)
"""Functions of torch whose ``device=`` is heeded."""

_ledger = Yielding()

Function = Callable[..., Any]


def is_asked() -> bool:
    """Whether this process is to do without CUDA."""
    return os.environ.get(VARIABLE) == "cpu"


def install() -> None:
    """Have CUDA mean the CPU, until :func:`remove`; torch is imported already."""
    import torch
    from torch import nn

    if len(_ledger):
        return
    scripted = torch.jit._builtins._get_builtin_table()
    for name in FACTORIES:
        stock = getattr(torch, name)
        stand_in = _with_keyword(stock, "device")
        _put(torch, name, stand_in)
        if id(stock) in scripted:
            _ledger.set_item(scripted, id(stand_in), scripted[id(stock)])
    _put(torch, "load", _with_keyword(torch.load, "map_location", 1))
    _put(torch.Tensor, "pin_memory", _returns_itself(torch.Tensor.pin_memory))
    for owner in (torch.Tensor, nn.Module):
        _put(owner, "cuda", _returns_itself(owner.cuda))
        _put(owner, "to", _with_place(owner.to))
    # device_count stays 0: torch asks it where to save states of random numbers.
    for name, value in (
        ("set_device", None),
        ("synchronize", None),
        ("current_device", 0),
    ):
        _put(torch.cuda, name, _constant(getattr(torch.cuda, name), value))
    if torch.distributed.is_available():
        _install_distributed(torch)


def remove() -> None:
    """Take everything back; tensors stay where they are."""
    _ledger.undo()


def remarks() -> list[str]:
    """What others have changed, and we left as it is."""
    return list(_ledger.remarks)


def _install_distributed(torch: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    distributed = torch.distributed
    for name in ("init_process_group", "new_group"):
        stand_in = _with_gloo(getattr(distributed, name))
        for module in (distributed, distributed.distributed_c10d):
            _put(module, name, stand_in)
    stand_in = _with_place(distributed.init_device_mesh)
    for module in (distributed, distributed.device_mesh):
        _put(module, "init_device_mesh", stand_in)
    construct = _without_device_ids(DistributedDataParallel.__init__)
    _put(DistributedDataParallel, "__init__", construct)


def _put(owner: Any, name: str, stand_in: Function) -> None:
    _ledger.set_attribute(owner, name, stand_in)


def _calling(stock: Function, change: Callable[[Any, Any], Any]) -> Function:
    """A stand-in that calls stock with the arguments that ``change`` gives."""

    @functools.wraps(stock)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        try:
            return stock(*args, **kwargs)
        except BaseException as error:
            _frames.hide(error)
            raise

    return stand_in


def _with_keyword(stock: Function, name: str, place: int | None = None) -> Function:
    """Of a function that takes a device by this name, and by this place if any."""

    def change(args: Any, kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = _placed(kwargs[name])
        args = tuple(_placed(a) if i == place else a for i, a in enumerate(args))
        return args, kwargs

    return _calling(stock, change)


def _with_place(stock: Function) -> Function:
    """Of a function that takes a device anywhere; a number is one of CUDA."""

    def change(args: Any, kwargs: Any) -> Any:
        args = tuple(_placed(a) if i < 2 else a for i, a in enumerate(args))  # noqa: PLR2004
        return args, {k: _placed(v) for k, v in kwargs.items()}

    return _calling(stock, change)


def _returns_itself(stock: Function) -> Function:
    @functools.wraps(stock)
    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self

    return cuda


def _constant(stock: Function, value: Any) -> Function:
    @functools.wraps(stock)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return value

    return stand_in


def _with_gloo(stock: Function) -> Function:
    def change(args: Any, kwargs: Any) -> Any:
        if kwargs.get("device_id") is not None:
            kwargs["device_id"] = None
        args = tuple("gloo" if _is_nccl(a) else a for a in args)
        return args, {k: "gloo" if _is_nccl(v) else v for k, v in kwargs.items()}

    return _calling(stock, change)


def _is_nccl(backend: Any) -> bool:
    """Whether this names NCCL, alone or by device; paths and addresses do not."""
    if not isinstance(backend, str):
        return False
    parts = backend.lower().split(",")
    return any(part.removeprefix("cuda:") == "nccl" for part in parts)


def _without_device_ids(stock: Function) -> Function:
    def change(args: Any, kwargs: Any) -> Any:
        # They are the third and fourth argument after the wrapper itself.
        args = tuple(None if i in (2, 3) else a for i, a in enumerate(args))
        return args, {
            k: None if k in ("device_ids", "output_device") else v
            for k, v in kwargs.items()
        }

    return _calling(stock, change)


def _placed(value: Any) -> Any:
    """The CPU for a device of CUDA; anything else as it is."""
    import torch

    if isinstance(value, int) and not isinstance(value, bool):
        return "cpu"
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, dict):  # of torch.load
        return {key: _placed(v) for key, v in value.items()}
    return value
