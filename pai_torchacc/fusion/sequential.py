"""Modules of an ``nn.Sequential`` that are run as one, where all are known.

A Linear and the activation behind it are one ``linear_act``; with another Linear behind
these, where they are trained on CUDA, one ``mlp``. A Conv2d with what follows of
BatchNorm2d in eval mode, ReLU and a 2x2 MaxPool2d is one ``conv2d`` where no gradient
is asked for: scale, shift and the rest are applied while the outputs are in the cache.
Where stock convolves, the norm and an activation are one ``batch_norm_act``, which
works in place where nobody could have its input. So they are in training, where their
node is :class:`~.norm_act.NormAct`.
On CUDA a ReLU and the MaxPool2d behind it are one ``relu_max_pool2d``. An int8 layer
computes the BatchNorm2d and the ReLU behind it. The scale is computed anew from the
norm's tensors at each call, so that nothing can go stale.

That passes over everything that torch would have called in between. So the extension
remembers what it is, and calls the modules as ever as soon as any of it is another.
``operator_fusion`` and ``model_quantization`` share the one stand-in.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as _module

from pai_torchacc._frames import hide
from pai_torchacc.fusion.calls.module_call import attributes
from pai_torchacc.fusion.compiled import traced_as
from pai_torchacc.fusion.foreign import chains, is_torchs_own

_METHODS = ("forward", "__call__", "_call_impl", "__getattr__", "__getattribute__")


class Known(NamedTuple):
    """A class, what its ``forward`` goes through, and where it keeps tensors.

    ``of_tensors`` are methods that it calls of its input.
    """

    kind: type
    functions: tuple[tuple[Any, str], ...] = ()
    methods: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    of_tensors: tuple[str, ...] = ()

    def is_untouched(self) -> bool:
        """Whether all of it is torch's own, or ours."""
        methods = itertools.product(self._classes(), (*_METHODS, *self.methods))
        of_tensors = ((torch.Tensor, name) for name in self.of_tensors)
        places = (*methods, *self.functions, *of_tensors)
        return all(is_torchs_own(*place) for place in places)

    def watched(self) -> Iterator[tuple[Any, str, Any]]:
        """Give (owner, name, value) of all that has to stay as it is.

        None for the name of a tensor or of what a leaf reads: a property of the class
        would come before it.
        """
        for name in (*_METHODS, *self.methods):
            yield self.kind, name, getattr(self.kind, name)
        for owner, name in self.functions:
            yield vars(owner), name, vars(owner)[name]
        for name in self.of_tensors:
            yield torch.Tensor, name, getattr(torch.Tensor, name)
        absent = dict.fromkeys((*self.tensors, *attributes().get(self.kind, ())))
        for cls, name in itertools.product(self._classes(), absent):
            yield vars(cls), name, None

    def _classes(self) -> tuple[type, ...]:
        return self.kind.__mro__[:-1]


_nn = torch._C._nn
_WEIGHTS = ("weight", "bias")
_KNOWN = (
    Known(nn.Linear, ((F, "linear"),), (), _WEIGHTS),
    Known(nn.Conv2d, ((F, "conv2d"),), ("_conv_forward",), _WEIGHTS),
    Known(
        nn.BatchNorm2d,
        ((F, "batch_norm"), (F, "_verify_batch_size"), (torch, "batch_norm")),
        ("_check_input_dim",),
        (*_WEIGHTS, "running_mean", "running_var", "num_batches_tracked"),
        ("add_",),
    ),
    Known(
        nn.BatchNorm1d,
        ((F, "batch_norm"), (F, "_verify_batch_size"), (torch, "batch_norm")),
        ("_check_input_dim",),
        (*_WEIGHTS, "running_mean", "running_var", "num_batches_tracked"),
        ("add_",),
    ),
    Known(
        nn.BatchNorm3d,
        ((F, "batch_norm"), (F, "_verify_batch_size"), (torch, "batch_norm")),
        ("_check_input_dim",),
        (*_WEIGHTS, "running_mean", "running_var", "num_batches_tracked"),
        ("add_",),
    ),
    Known(
        nn.MaxPool2d,
        ((F, "max_pool2d"), (F, "_max_pool2d"), (torch, "max_pool2d")),
    ),
    Known(nn.ReLU, ((F, "relu"), (torch, "relu"), (torch, "relu_"))),
    Known(nn.ReLU6, ((F, "hardtanh"), (_nn, "hardtanh"), (_nn, "hardtanh_"))),
    Known(nn.Hardswish, ((F, "hardswish"), (_nn, "hardswish"), (_nn, "hardswish_"))),
    Known(nn.GELU, ((F, "gelu"),)),
    Known(nn.SiLU, ((F, "silu"), (_nn, "silu"), (_nn, "silu_"))),
    Known(nn.Tanh, ((torch, "tanh"),)),
    Known(nn.Sigmoid, ((torch, "sigmoid"),)),
    Known(nn.Dropout, ((F, "dropout"),)),
    Known(nn.Embedding, ((F, "embedding"), (torch, "embedding")), (), ("weight",)),
    Known(
        nn.EmbeddingBag,
        ((F, "embedding_bag"), (torch, "embedding_bag")),
        (),
        ("weight",),
    ),
    Known(nn.Sequential, (), ("__iter__",)),
    Known(nn.Conv1d, ((F, "conv1d"),), ("_conv_forward",), _WEIGHTS),
    Known(nn.LayerNorm, ((F, "layer_norm"), (torch, "layer_norm")), (), _WEIGHTS),
    Known(nn.AvgPool2d, ((F, "avg_pool2d"),)),
    Known(
        nn.AdaptiveAvgPool2d,
        (
            *((F, "adaptive_avg_pool2d"), (F, "_list_with_default")),
            (_nn, "adaptive_avg_pool2d"),
        ),
    ),
    Known(nn.LeakyReLU, ((F, "leaky_relu"), (_nn, "leaky_relu"))),
    Known(nn.ELU, ((F, "elu"), (_nn, "elu"))),
    Known(nn.Hardsigmoid, ((F, "hardsigmoid"), (_nn, "hardsigmoid"))),
    Known(nn.Softmax, ((F, "softmax"),), of_tensors=("softmax",)),
    Known(nn.LogSoftmax, ((F, "log_softmax"),), of_tensors=("log_softmax",)),
    Known(nn.Flatten, of_tensors=("flatten",)),
    Known(nn.Identity),
)


def install(c: Any, switch: str, known: tuple[Known, ...] = ()) -> None:
    """Have a switch use the stand-in of ``nn.Sequential.forward``; chains.release().

    Called after other changes of the switch: what is there by now is remembered.
    Classes and functions that somebody has patched already are called as ever.
    """
    chains.users[switch] = known
    if not len(chains):  # first: the guards remember what is there
        is_own = is_torchs_own(nn.Sequential, "forward")
        chains.set_attribute(
            nn.Sequential, "forward", _sequential_forward(c) if is_own else None
        )
    classes = (*_KNOWN, *itertools.chain.from_iterable(chains.users.values()))
    c.module_guards_install(
        [(k.kind, list(k.watched())) for k in classes if k.is_untouched()],
        [
            _module._global_backward_pre_hooks,
            _module._global_backward_hooks,
            _module._global_forward_hooks,
            _module._global_forward_pre_hooks,
        ],
    )


@functools.cache
def _sequential_forward(c: Any) -> Any:
    original, accelerated = vars(nn.Sequential)["forward"], c.sequential
    iterate = nn.Sequential.__iter__

    @traced_as(original)
    @functools.wraps(original)
    def forward(self: nn.Sequential, input: Any) -> Any:
        try:
            children = self._modules
            if type(children) is not dict or type(self).__iter__ is not iterate:
                return original(self, input)
            return accelerated(children, input)
        except BaseException as error:
            hide(error)
            raise

    return forward
