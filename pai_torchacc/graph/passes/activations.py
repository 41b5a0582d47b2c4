"""Activations, by the numbers that the extension's kernels know them by."""

from __future__ import annotations

import torch

from pai_torchacc.graph.ir import Node, Value

_aten = torch.ops.aten

RELU, GELU, GELU_TANH, SILU, TANH, SIGMOID, RELU6, HARDSWISH = range(1, 9)
"""As ``ptac_act`` in ``csrc/ops/linear/act.h``."""

BEHIND_CONVOLUTIONS = {RELU, RELU6}
BEHIND_NORMS = {RELU, RELU6, SILU, HARDSWISH}
BEHIND_PRODUCTS = {RELU, GELU, GELU_TANH, SILU, TANH, SIGMOID}

_CODES = {
    _aten.relu.default: RELU,
    _aten.silu.default: SILU,
    _aten.tanh.default: TANH,
    _aten.sigmoid.default: SIGMOID,
    _aten.hardswish.default: HARDSWISH,
}


def activation_of(node: Node, among: set[int]) -> int:
    """The number of a node that is one of these activations; 0 of others."""
    code = _CODES.get(node.op, 0)
    if node.op is _aten.gelu.default:
        code = GELU_TANH if node.kwargs.get("approximate") == "tanh" else GELU
    if node.op is _aten.hardtanh.default and node.args[1:] == (0, 6):
        code = RELU6
    return code if code in among else 0


_GRADIENTS = {
    _aten.threshold_backward.default: RELU,
    _aten.gelu_backward.default: GELU,
    _aten.silu_backward.default: SILU,
    _aten.tanh_backward.default: TANH,
    _aten.sigmoid_backward.default: SIGMOID,
}


def gradient_of(node: Node) -> tuple[int, Value, Value]:
    """Of an activation's gradient: which, of what, and from which saved tensor.

    0 of others.
    """
    code = _GRADIENTS.get(node.op, 0)
    if code == 0 or not all(isinstance(value, Value) for value in node.args[:2]):
        return 0, node.output, node.output
    if code == RELU and node.args[2] != 0:
        code = 0
    if code == GELU and node.kwargs.get("approximate") == "tanh":
        code = GELU_TANH
    return code, node.args[0], node.args[1]


def norm_gradient_of(node: Node, z: Value, y: Value) -> int:
    """Which activation's gradient a node computes, where that made y of z; or 0."""
    if node.op is _aten.threshold_backward.default:
        return RELU if node.args[1] is y and node.args[2] == 0 else 0
    if len(node.args) < 2 or node.args[1] is not z:  # noqa: PLR2004
        return 0
    if node.op is _aten.hardtanh_backward.default:
        return RELU6 if tuple(node.args[2:]) == (0, 6) else 0
    codes = {
        _aten.silu_backward.default: SILU,
        _aten.hardswish_backward.default: HARDSWISH,
    }
    return codes.get(node.op, 0)
