"""Calling modules: ``nn.Module.__call__`` in C, and leaves without their ``forward``.

Torch spends 1 to 3 us of Python on a call of a small layer before anything is computed.
An object in the class's dictionary does the same in C: see ``callpath/call`` of the C
core. A leaf is a module whose ``forward`` is one call of a function of torch; the table
below says which function, and what goes behind the input. Torch's function is called
by way of torch's dispatcher as ever, so that the numbers are the same bits.

``nn.Module.__call__`` still reads as torch's own function.
"""

from __future__ import annotations

import enum
import functools
import sys
import threading
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion import sites
from pai_torchacc.fusion.compiled import not_compiled_alone
from pai_torchacc.fusion.foreign import is_torchs_own


class _Source(enum.IntEnum):
    """Where the extension finds an argument, in the order of its enum."""

    ATTRIBUTE = 0
    GIVEN = 1
    PARAMETER = 2
    BUFFER = 3
    SETTING = 4


_PARAMETERS = ("weight", "bias")
_BUFFERS = ("running_mean", "running_var")
_GIVEN = ("output_size", "dim")


class Leaf(NamedTuple):
    """What ``forward`` of a class calls.

    ``behind`` are attributes of the module, or functions that tell a setting. The last
    ones have the names ``keywords``. All of ``where`` must be so; else ``forward`` is
    called. Without a function it is special to the extension, which ``reads`` other
    attributes.
    """

    kind: type[nn.Module]
    function: Any
    behind: tuple[Any, ...] = ()
    where: tuple[tuple[str, Any], ...] = ()
    keywords: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    def entry(self) -> tuple[Any, ...]:
        """Give what the extension reads."""
        return (
            self.kind.__name__,
            self.function,
            [_argument(a) for a in self.behind],
            self.keywords,
            list(self.where),
        )


def _argument(a: Any) -> tuple[int, Any]:
    if callable(a):
        return _Source.SETTING, a
    if a in _PARAMETERS:
        return _Source.PARAMETER, a
    if a in _BUFFERS:
        return _Source.BUFFER, a
    return (_Source.GIVEN if a in _GIVEN else _Source.ATTRIBUTE), a


_nn = torch._C._nn
_cudnn = torch._C._get_cudnn_enabled
_GEOMETRY = ("stride", "padding", "dilation", "groups")
_OUT_OF_PLACE = (("inplace", False),)


def _leaves() -> list[Leaf]:
    """The functions as ``forward`` finds them at the moment.

    Those that somebody has wrapped are no matter: such a class is not known, see
    ``_KNOWN`` in :mod:`.sequential`, which has to name all that ``forward`` calls.
    """
    convolution = (*_PARAMETERS, *_GEOMETRY)
    zeros = (("padding_mode", "zeros"),)
    window = ("kernel_size", "stride", "padding")
    normalised = ("normalized_shape", *_PARAMETERS, "eps", _cudnn)
    statistics = ("training", "momentum", "eps")
    batch_norm = (*_PARAMETERS, *_BUFFERS, *statistics, _cudnn)
    tracking = (("track_running_stats", True),)
    return [
        *(
            Leaf(kind, torch.batch_norm, batch_norm, tracking)
            for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        ),
        Leaf(nn.Sequential, None, reads=("_modules",)),
        Leaf(nn.Identity, None),
        Leaf(nn.Dropout, None, reads=("training", "p")),
        Leaf(nn.Linear, F.linear, _PARAMETERS),
        Leaf(nn.Conv1d, F.conv1d, convolution, zeros),
        Leaf(nn.Conv2d, F.conv2d, convolution, zeros),
        Leaf(nn.LayerNorm, torch.layer_norm, normalised),
        Leaf(
            nn.MaxPool2d,
            torch.max_pool2d,
            (*window, "dilation", "ceil_mode"),
            (("return_indices", False),),
        ),
        Leaf(
            nn.AvgPool2d,
            F.avg_pool2d,
            (*window, "ceil_mode", "count_include_pad", "divisor_override"),
        ),
        Leaf(nn.AdaptiveAvgPool2d, _nn.adaptive_avg_pool2d, ("output_size",)),
        Leaf(nn.Softmax, torch.Tensor.softmax, ("dim",)),
        Leaf(nn.LogSoftmax, torch.Tensor.log_softmax, ("dim",)),
        Leaf(nn.ReLU, torch.relu, where=_OUT_OF_PLACE),
        Leaf(nn.LeakyReLU, _nn.leaky_relu, ("negative_slope",), _OUT_OF_PLACE),
        Leaf(nn.ELU, _nn.elu, ("alpha",), _OUT_OF_PLACE),
        Leaf(nn.SiLU, _nn.silu, where=_OUT_OF_PLACE),
        Leaf(nn.Hardswish, _nn.hardswish, where=_OUT_OF_PLACE),
        Leaf(nn.Hardsigmoid, _nn.hardsigmoid, where=_OUT_OF_PLACE),
        Leaf(nn.GELU, F.gelu, ("approximate",), keywords=("approximate",)),
        Leaf(nn.Tanh, torch.tanh),
        Leaf(nn.Sigmoid, torch.sigmoid),
        Leaf(nn.Flatten, torch.Tensor.flatten, ("start_dim", "end_dim")),
    ]


def attributes() -> dict[type, list[str]]:
    """What leaves read of a module's dictionary, which its class must not have."""
    return {
        leaf.kind: [
            *(a for a in leaf.behind if isinstance(a, str)),
            *(name for name, _ in leaf.where),
            *leaf.reads,
        ]
        for leaf in _leaves()
    }


def install(c: Any, ledger: Ledger) -> None:
    """Put our object into ``nn.Module``; the ledger takes it away."""
    _host.learns_type_versions(c)
    _learn_tracing(c)
    c.lend(
        stock_call_impl=nn.Module._call_impl,
        stock_compiled_impl=nn.Module._compiled_call_impl,
        stock_getattribute=object.__getattribute__,
    )
    learn_leaves(c)
    _install_call(c, ledger)


def learn_leaves(c: Any) -> None:
    """Show the extension what leaves call; :mod:`.sequential` comes first.

    They stay known: nobody asks for them without our object.
    """
    c.leaves_install([leaf.entry() for leaf in _leaves()])


def _install_call(c: Any, ledger: Ledger) -> None:
    stock = vars(nn.Module)["_wrapped_call_impl"]
    call = _call(c, stock)
    if call is None:
        return
    if vars(nn.Module)["__call__"] is call:  # put back by others after we had gone
        nn.Module.__call__ = stock
    now = vars(nn.Module)["__call__"]
    if now is stock and is_torchs_own(nn.Module, "_call_impl"):
        ledger.set_attribute(nn.Module, "__call__", call)
        trace = _trace(c, ledger, vars(torch.fx.Tracer)["trace"])
        ledger.set_attribute(torch.fx.Tracer, "trace", trace)
    elif now is stock or not is_torchs_own(nn.Module, "__call__"):
        ledger.set_attribute(nn.Module, "__call__", None)  # notes who is in the way


def open(c: Any) -> None:
    """Have the object do more than torch's function, which it is in the place of."""
    c.module_call_open(True)
    if is_torchs_own(nn.Module, "__getattr__"):
        c.module_getattr_open(vars(nn.Module)["__getattr__"])


def close(c: Any) -> None:
    """Have an object that stays, or that others keep, do what torch's function does."""
    c.module_call_open(False)
    c.module_getattr_close()


@functools.cache
def _call(c: Any, stock: Any) -> Any:
    """The one object that takes the place of ``nn.Module.__call__``."""
    return c.module_call_make(stock)


@functools.cache
def _trace(c: Any, ledger: Ledger, original: Any) -> Any:
    """Symbolic tracing, which patches nn.Module and puts torch's function back."""

    @not_compiled_alone
    @functools.wraps(original)
    def trace(self: torch.fx.Tracer, *args: Any, **keywords: Any) -> Any:
        try:
            with sites.paused(c):
                return original(self, *args, **keywords)
        except BaseException as error:
            hide(error)
            raise
        finally:
            ledger.repeat(nn.Module, "__call__")

    return trace


@functools.cache
def _learn_tracing(c: Any) -> bool:
    """In a thread of its own, which nobody profiles or debugs."""
    found: list[bool] = []

    def learn() -> None:
        for set_function in (sys.setprofile, sys.settrace):
            set_function(None)
        c.tracing_picture(0)
        sys.setprofile(ignore)
        c.tracing_picture(1)
        sys.setprofile(None)
        sys.settrace(ignore)
        c.tracing_picture(2)
        sys.settrace(None)
        found.append(c.tracing_learn())

    def ignore(*_: Any) -> None:
        pass

    thread = threading.Thread(target=learn)
    thread.start()
    thread.join()
    return found == [True]
