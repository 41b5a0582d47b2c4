"""torch's own sample generators for operators and modules, off against on.

Values, strides, dtypes, exceptions and gradients are compared. What rounds differently
is held to torch.testing's tolerances here and to the contract in files of its own;
everything else must be the same to the bit. ``PTAC_TEST_FULL=1`` runs all of torch's
operators, modules and samples instead of a fixed part.
"""

from __future__ import annotations

import os
import random
import warnings
from functools import partial
from itertools import islice
from typing import Any

import contract
import layers
import pytest
import switching
import torch
from opinfo import compare, in_float64, is_comparable, name_of, run, samples
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map

FULL = os.environ.get("PTAC_TEST_FULL") == "1"

OURS: dict[str, tuple[str, ...]] = {
    "nn.functional.conv2d": ("conv2d", "conv2d_backward"),
    "nn.functional.conv1d": (),
    "nn.functional.conv3d": (),
    "nn.functional.conv_transpose1d": (),
    "nn.functional.conv_transpose2d": ("conv2d",),
    "nn.functional.conv_transpose3d": (),
    "nn.functional.max_pool2d": ("max_pool2d", "max_pool2d_backward"),
    "nn.functional.avg_pool2d": ("avg_pool2d", "avg_pool2d_backward"),
    "nn.functional.adaptive_avg_pool2d": (
        "adaptive_avg_pool2d",
        "adaptive_avg_pool2d_backward",
    ),
    "nn.functional.max_pool3d": ("max_pool3d", "max_pool3d_backward"),
    "nn.functional.avg_pool3d": ("avg_pool3d", "avg_pool3d_backward"),
    "nn.functional.adaptive_avg_pool3d": (
        "adaptive_avg_pool3d",
        "adaptive_avg_pool3d_backward",
    ),
    "mean": ("mean",),
    "nn.functional.mish": ("mish", "mish_backward"),
    "nn.functional.prelu": ("prelu_backward",),
    "nn.functional.gelu": ("gelu", "gelu_backward"),
    "tanh": ("tanh",),
    "sigmoid": ("sigmoid",),
    "nn.functional.elu": ("elu", "elu_backward"),
    "nn.functional.silu": ("silu", "silu_backward"),
    "nn.functional.hardswish": ("hardswish", "hardswish_backward"),
    "nn.functional.hardsigmoid": ("hardsigmoid", "hardsigmoid_backward"),
    "nn.functional.mse_loss": ("mse_loss", "mse_loss_backward"),
    "nn.functional.smooth_l1_loss": ("smooth_l1_loss", "smooth_l1_loss_backward"),
    "nn.functional.binary_cross_entropy": ("binary_cross_entropy",),
    "nn.functional.binary_cross_entropy_with_logits": (
        "binary_cross_entropy_with_logits",
    ),
    "softmax": ("softmax", "softmax_backward"),
    "nn.functional.layer_norm": ("layer_norm", "layer_norm_backward"),
    "nn.functional.rms_norm": ("rms_norm", "rms_norm_backward"),
    "native_layer_norm": ("layer_norm", "layer_norm_backward"),
    "nn.functional.upsample_nearest": (
        "upsample_nearest2d",
        "upsample_nearest2d_backward",
    ),
    "nn.functional.upsample_bilinear": (
        "upsample_bilinear2d",
        "upsample_bilinear2d_backward",
    ),
    "nn.functional.pixel_shuffle": ("pixel_shuffle", "pixel_unshuffle"),
    "nn.functional.pad": (),
    "constant_pad_nd": ("constant_pad_nd",),
    "index_select": ("index_select", "index_add"),
    "__getitem__": ("index",),
    "index_add": ("index_select",),
    "scatter_add": (),
    "scatter_reduce": (),
    "scatter": (),
    "index_put": (),
    "nn.functional.embedding": ("index_select", "embedding_backward"),
    "nn.functional.embedding_bag": (
        "embedding_bag",
        "embedding_bag_backward",
        "embedding_bag_max_backward",
    ),
    "nn.functional.pixel_unshuffle": ("pixel_shuffle", "pixel_unshuffle"),
    "nn.functional.batch_norm": ("batch_norm", "batch_norm_backward"),
    "nn.functional.instance_norm": ("batch_norm", "batch_norm_backward"),
    "native_batch_norm": ("batch_norm", "batch_norm_backward"),
    "log_softmax": ("log_softmax", "log_softmax_backward"),
    "nn.functional.cross_entropy": ("cross_entropy", "cross_entropy_backward"),
    "nn.functional.linear": ("linear_act",),
    "cat": (),
    "stack": (),
    "contiguous": (),
    "clone": (),
    "permute_copy": ("copy",),
    "transpose_copy": ("copy",),
    "t_copy": (),
    "expand_copy": ("copy",),
}
"""Operators that we replace, and what must be counted for float32 samples."""

TOO_SMALL = ("linear_act",)
"""Operators that get the samples, and leave all of them to stock for their size."""

EACH = {f"nn.functional.max_pool{n}d": 1 if FULL else 13 for n in (2, 3)}
"""Of operators with very many samples, one in so many: here 111 of 1440. The samples
are a product of options, of which none has thirteen values."""

LAID_OUT_OTHERWISE = ("nn.functional.scaled_dot_product_attention",)
"""With dropout, gradients of keys have other strides than stock's. The numbers are
compared in tests/fusion/attention."""

ROUNDS = (
    "log_softmax",
    "cross_entropy",
    "linear",
    "mm",
    "nll_loss",
    "mean",
    "adaptive_avg_pool",
    "kl_div",
    "softmax",
    "conv",
    "mish",
    "bilinear",
    "batch_norm",
    "instance_norm",
    "gelu",
    "tanh",
    "sigmoid",
    "silu",
    "hardswish",
    "_loss",
    "binary_cross_entropy",
    "layer_norm",
    "matmul",
    "einsum",
    "linalg",
    "cholesky",
    "solve",
    "pinverse",
    "cdist",
    "rms_norm",
    ".elu",
    "selu",
    "celu",
    "multi_dot",
    "norm-nuc",
)
"""Parts of names of operators that may reach rows of level close."""

AMPLIFIES = {"linalg.householder_product"}
"""Errors of ours are 0.08 to 14 times stock's, of 240 draws, and 0.96 on average."""

MODULES = {
    "nn.Conv2d": "conv2d",
    "nn.MaxPool2d": "max_pool2d",
    "nn.AvgPool2d": "avg_pool2d",
    "nn.AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "nn.MaxPool3d": "max_pool3d",
    "nn.AvgPool3d": "avg_pool3d",
    "nn.AdaptiveAvgPool3d": "adaptive_avg_pool3d",
    "nn.Mish": "mish",
    "nn.GELU": "gelu",
    "nn.Tanh": "tanh",
    "nn.Sigmoid": "sigmoid",
    "nn.SiLU": "silu",
    "nn.ELU": "elu",
    "nn.Hardswish": "hardswish",
    "nn.MSELoss": "mse_loss",
    "nn.SmoothL1Loss": "smooth_l1_loss",
    "nn.BCELoss": "binary_cross_entropy",
    "nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "nn.Softmax": "softmax",
    "nn.LayerNorm": "layer_norm",
    "nn.RMSNorm": "rms_norm",
    "nn.BatchNorm1d": "batch_norm",
    "nn.BatchNorm2d": "batch_norm",
    "nn.BatchNorm3d": "batch_norm",
    "nn.InstanceNorm2d": "batch_norm",
    "nn.CrossEntropyLoss": "cross_entropy",
    "nn.LogSoftmax": "log_softmax",
    "nn.Linear": "linear_act",
    "nn.LSTM": "lstm",
    "nn.LSTMCell": "lstm",
    "nn.GRU": "gru",
    "nn.GRUCell": "gru",
    "nn.RNN": "rnn_tanh",
    "nn.RNNCell": "rnn_tanh",
}


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def chosen_operators() -> list[Any]:
    """Ours with all their variants, and others in a sample that never changes."""
    ours = [op for op in op_db if op.name in OURS]
    apart = {*OURS, *LAID_OUT_OTHERWISE}
    others = [op for op in op_db if op.name not in apart and is_comparable(op.name)]
    if not FULL:
        others = random.Random(0).sample(others, 50)
    return ours + others


def chosen_modules() -> list[Any]:
    ours = [m for m in module_db if m.name in MODULES]
    slow = "nn.LinearCrossEntropyLoss"
    others = [
        m for m in module_db if m.name not in MODULES and (FULL or m.name != slow)
    ]
    if not FULL:
        others = random.Random(0).sample(others, 20)
    return ours + others


def gives_the_same(function: Any, args: Any, kwargs: Any, before: Any) -> bool:
    """Whether stock, called again, gives what it gave before."""
    try:
        contract.exactly(run(function, args, kwargs), before)
    except AssertionError:
        return False
    return True


def linear(*args: Any, **kwargs: Any) -> Tensor:
    """What nn.Linear does, which is what we replace."""
    return layers.linear(*args, **kwargs)


def function_of(op: Any) -> Any:
    return linear if op.name == "nn.functional.linear" else op


def seen(hits: switching.Hits) -> int:
    """Accelerated calls, or all calls of an operator that is forwarded by design."""
    forwarded = hits.forwarded.get("shape", 0) if hits.op in TOO_SMALL else 0
    return hits.accelerated + forwarded


def cases() -> list[Any]:
    found = []
    for op in chosen_operators():
        supported = op.supported_dtypes("cpu")
        mine = op.name in OURS
        for dtype in DTYPES if mine or FULL else DTYPES[:1]:
            if dtype in supported:
                found.append((op, dtype))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), cases(), ids=name_of)
def test_operator(op: Any, dtype: torch.dtype) -> None:
    if op.name in AMPLIFIES:
        pytest.skip("its gradient amplifies roundings, ours and stock's by chance")
    rounds = any(part in name_of(op) for part in ROUNDS)
    function = function_of(op)
    counted = OURS.get(op.name, ())
    limit = None if FULL or counted else 12
    chosen = islice(samples(op, dtype), 0, limit, EACH.get(op.name, 1))
    calls = [((sample.input, *sample.args), sample.kwargs) for sample in chosen]
    stock = [run(function, *call) for call in calls]
    with switching.accelerated():
        hits = {name: switching.hits(name) for name in counted}
        ours = [run(function, *call) for call in calls]
        total = {name: seen(h) for name, h in hits.items()}
    for number, (call, a, b) in enumerate(zip(calls, ours, stock, strict=True)):
        exact = partial(run, function, *tree_map(in_float64, call))
        bound = exact if dtype is torch.float32 else None
        try:
            compare(a, b, rounds, f"{op.name}, sample {number}", bound)
        except AssertionError:
            if gives_the_same(function, *call, b):
                raise
    # A variant asks for another dtype, which no row takes.
    if dtype is torch.float32 and not op.variant_test_name:
        assert all(total.values()), total


@pytest.mark.parametrize("op", [op for op in op_db if op.name in OURS], ids=name_of)
def test_errors_of_operators(op: Any) -> None:
    """What torch lists as errors are the same errors."""
    if op.error_inputs_func is None:
        return
    # Made anew for either: what it is called with may change before it is found wrong.
    for a, b in zip(*(op.error_inputs_func(op, "cpu") for _ in range(2)), strict=True):
        stock = raised_by(op, a.sample_input)
        with switching.accelerated():
            ours = raised_by(op, b.sample_input)
        assert ours == stock


def raised_by(op: Any, sample: Any) -> str:
    """What a call raises, of the arguments themselves: they may overlap each other."""
    with warnings.catch_warnings(), pytest.raises(Exception) as raised:
        warnings.simplefilter("ignore")
        function_of(op)(sample.input, *sample.args, **sample.kwargs)
    return f"{raised.type.__name__}: {raised.value}"


def module_run(info: Any, given: Any, training: bool, wide: bool = False) -> list[Any]:
    """Results, gradients and buffers of a sample; wide in float64."""
    torch.default_generator.manual_seed(0)
    made = given.constructor_input
    module = info.module_cls(*made.args, **made.kwargs)
    module.train(training)
    args, kwargs = given.forward_input.args, given.forward_input.kwargs
    if wide:
        module.double()
        args, kwargs = (tree_map(in_float64, x) for x in (args, kwargs))
    parameters = list(module.parameters())
    found = run(module, args, kwargs)
    if isinstance(found[0], str) or not parameters:
        return found
    out = module(*args, **kwargs)
    roots = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor)]
    roots = [t for t in roots if t.requires_grad]
    if roots:
        sum(t.sum() for t in roots).backward()
    return [*found, [p.grad for p in parameters], list(module.buffers())]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", chosen_modules(), ids=name_of)
def test_module(info: Any) -> None:
    warnings.simplefilter("ignore")
    parts = ("Linear", "CrossEntropy", "LogSoftmax", "Trans", "Conv", "Mish")
    parts += ("BatchNorm", "InstanceNorm", "LayerNorm", "Softm", "Loss", "Attention")
    parts += ("GELU", "Tanh", "Sigmoid", "SiLU", "Hardswish", "Hardsigmoid")
    parts += ("RNN", "LSTM", "GRU", "ELU", "RMSNorm", "AdaptiveAvg")
    rounds = any(part in info.name for part in parts)
    op = MODULES.get(info.name)
    total = 0
    for training in (True, False):
        torch.default_generator.manual_seed(0)
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True,
            training=training,
        )  # fmt: skip
        inputs = [given for given in inputs if given.forward_input is not None]
        stock = [module_run(info, given, training) for given in inputs]
        with switching.accelerated():
            hits = switching.hits(op) if op else None
            ours = [module_run(info, given, training) for given in inputs]
            total += seen(hits) if hits else 0
        for number, (a, b) in enumerate(zip(ours, stock, strict=True)):
            exact = partial(module_run, info, inputs[number], training, wide=True)
            compare(a, b, rounds, f"{info.name}, input {number}", exact)
    assert total or not op


def test_the_sample_is_there() -> None:
    """Renamed operators would silently fall out of this file."""
    assert OURS.keys() <= {op.name for op in op_db}
    assert MODULES.keys() <= {m.name for m in module_db}
    assert len(chosen_operators()) >= 56
