"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` on the CPU, a layer in one direction; cells.

The gradient is timed with them: the row that runs forward decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from pai_torchacc.bench.cases.case import Call, Case

Sizes = tuple[int, int, int, int]

SIZES: tuple[Sizes, ...] = (
    (1, 1, 16, 16),
    (1, 1, 128, 128),
    (4, 2, 16, 32),
    (32, 1, 64, 128),
    (16, 1, 256, 256),
    (4, 4, 256, 512),
    (8, 8, 8, 8),
    (24, 32, 8, 32),
    (32, 8, 64, 128),
    (32, 32, 64, 128),
    (16, 16, 256, 256),
    (4, 32, 512, 512),
)
"""Steps, rows, inputs and units."""

PACKED: tuple[Sizes, ...] = (
    (4, 2, 16, 32),
    (10, 4, 32, 64),
    (24, 16, 32, 64),
    (32, 32, 64, 128),
    (24, 32, 256, 256),
)
"""Likewise, of which sequences have between one and all steps."""

CELLS: tuple[tuple[int, int, int], ...] = (
    (1, 16, 16),
    (1, 64, 128),
    (1, 256, 256),
    (4, 64, 128),
    (1, 512, 512),
    (4, 256, 256),
    (8, 16, 32),
    (32, 64, 128),
    (32, 256, 256),
    (64, 512, 512),
)
"""Rows, inputs and units."""

MODULES: tuple[tuple[str, Any, Any, int], ...] = (
    ("lstm", nn.LSTM, nn.LSTMCell, 4),
    ("gru", nn.GRU, nn.GRUCell, 3),
    ("rnn_tanh", nn.RNN, nn.RNNCell, 1),
    (
        "rnn_relu",
        partial(nn.RNN, nonlinearity="relu"),
        partial(nn.RNNCell, nonlinearity="relu"),
        1,
    ),
)
"""Operator, layer, cell, gates."""

SLOW = ("scalar",)

FEW_ROWS = 8
"""As ops/recurrent/recurrent_ref.c has it."""


def cases() -> Iterator[Case]:
    """Cases of all."""
    for op, cls, cell, n_gates in MODULES:
        with_ops = (f"{op}_backward",)
        for sizes in SIZES:
            n_steps, n_rows, n_in, n_hidden = sizes
            work = n_steps * n_rows * (n_in + n_hidden) * n_gates * n_hidden
            kind = "rows" if n_rows >= FEW_ROWS else "few_rows"
            variants = (partial(_forward, cls, sizes),)
            yield Case(op, kind, "float32", work, variants, without_rows=SLOW)
            variants = (partial(_training, cls, sizes),)
            kind = f"{kind}_gradient"
            yield Case(op, kind, "float32", work, variants, with_ops, SLOW)
        for sizes in PACKED:
            n_in, n_hidden = sizes[2:]
            n_rows = int(_lengths(sizes).sum())
            work = n_rows * (n_in + n_hidden) * n_gates * n_hidden
            variants = (partial(_forward, cls, sizes, True),)
            yield Case(op, "packed", "float32", work, variants, without_rows=SLOW)
            variants = (partial(_training, cls, sizes, True),)
            kind = "packed_gradient"
            yield Case(op, kind, "float32", work, variants, with_ops, SLOW)
        for n_rows, n_in, n_hidden in CELLS:
            work = n_rows * (n_in + n_hidden) * n_gates * n_hidden
            kind = "cell_rows" if n_rows >= FEW_ROWS else "cell_few_rows"
            step = partial(_step, cell, (n_rows, n_in, n_hidden))
            variants = (partial(step, False),)
            yield Case(op, kind, "float32", work, variants, without_rows=SLOW)
            variants = (partial(step, True),)
            kind = f"{kind}_gradient"
            yield Case(op, kind, "float32", work, variants, with_ops, SLOW)


def _step(cls: Any, sizes: tuple[int, int, int], has_gradient: bool) -> Call:
    n_rows, n_in, n_hidden = sizes
    module, x = cls(n_in, n_hidden), torch.randn(n_rows, n_in)
    h = torch.randn(n_rows, n_hidden)
    states = (h, torch.randn(n_rows, n_hidden)) if cls is nn.LSTMCell else h
    wanted = list(module.parameters())
    if has_gradient:
        wanted.append(h.requires_grad_())

    def run() -> Any:
        with torch.set_grad_enabled(has_gradient):
            found = module(x, states)
        y = found[0] if isinstance(found, tuple) else found
        return torch.autograd.grad(y.sum(), wanted) if has_gradient else y

    return run


def _lengths(sizes: Sizes) -> torch.Tensor:
    """Of the sequences of a packed batch."""
    n_steps, n_rows = sizes[:2]
    return torch.linspace(n_steps, 1, n_rows).long()


def _forward(cls: Any, sizes: Sizes, is_packed: bool = False) -> Call:
    call = _training(cls, sizes, is_packed)
    module, x = call.args[:2]

    def run() -> Any:
        with torch.no_grad():
            return module(x)

    return run


def _training(cls: Any, sizes: Sizes, is_packed: bool = False) -> Any:
    n_steps, n_rows, n_in, n_hidden = sizes
    module = cls(n_in, n_hidden)
    x: torch.Tensor | PackedSequence = torch.randn(n_steps, n_rows, n_in)
    grad = torch.randn(n_steps, n_rows, n_hidden)
    if is_packed:
        x = pack_padded_sequence(x, _lengths(sizes))
        grad = pack_padded_sequence(grad, _lengths(sizes)).data
    return partial(_forward_and_backward, module, x, grad)


def _forward_and_backward(
    module: Callable[..., Any], x: torch.Tensor | PackedSequence, grad: torch.Tensor
) -> Any:
    y = module(x)[0]
    y = y.data if isinstance(x, PackedSequence) else y
    return torch.autograd.grad(y, list(module.parameters()), grad)
