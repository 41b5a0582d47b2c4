"""``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` on the CPU, and their cells.

All are composites of torch, so that no override reaches them: stand-ins for
``torch._VF.lstm`` and others, which the modules call, go through the extension, for
padded and for packed sequences. It runs all layers where no gradient is wanted. Where
one is, a layer in one direction is a node, :class:`Layer`, and torch joins and drops
out what lies between layers, by the random numbers that stock would draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import _VF, Tensor

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.node import as_saved, lean_apply
from pai_torchacc.fusion.shadow import run

OPERATORS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_ARGUMENTS = {op: 9 for op in OPERATORS} | {f"{op}_cell": 6 for op in OPERATORS}
"""Torch's functions; for padded and for packed sequences they have as many."""


class _Kind(NamedTuple):
    """What a layer is, beside its tensors."""

    op: str
    is_reverse: bool
    batch_sizes: Tensor | None
    is_composed: bool
    """Stock composes it from other operators, which keep other tensors."""
    is_cell: bool = False
    """A step alone, whose x is [rows, numbers] and whose y is h."""


_Parts = tuple[Tensor, Tensor, Tensor | None]
"""y, the last h, and of lstm the last c."""


class Layer(torch.autograd.Function):
    """A layer in one direction, with its gradient.

    A packed sequence has ``batch_sizes`` and is [1, rows of all steps, numbers].
    What the gradient is computed from is kept by the extension, as gates and cells.
    Where stock has computed forward, and for second derivatives, stock does it once
    more, from the inputs.
    """

    @staticmethod
    @not_compiled
    def forward(ctx: Any, kind: _Kind, *given: Tensor | None) -> Any:
        """Compute y, h and, of lstm, c from x, w_ih, w_hh, h0, b_ih, b_hh and c0."""
        y, hn, cn, gates, cells = _layer(kind, given)
        ctx.set_materialize_grads(False)
        ctx.kind = kind
        # Where torch does without oneDNN it keeps views of the weights, which may have
        # other memory since, and no biases, which may change. Else it keeps them all.
        x, w_ih, w_hh, h0, b_ih, b_hh, c0 = given
        ctx.weights = ctx.biases = ctx.unsaved = ()
        if kind.is_composed and w_ih is not None and w_hh is not None:
            ctx.weights = w_ih.detach(), w_hh.detach()
            if b_ih is not None and b_hh is not None:
                ctx.biases = b_ih, b_hh, b_ih.detach().clone(), b_hh.detach().clone()
                b_ih = b_hh = None
            # Nor does it keep a weight that no gradient goes through.
            needs = ctx.needs_input_grad
            if not needs[1]:
                ctx.unsaved += ((1, w_ih, _version(w_ih)),)
                w_ih = None
            n_steps = len(x if kind.batch_sizes is None else kind.batch_sizes)
            if (kind.is_cell or n_steps == 1) and not needs[4]:
                ctx.unsaved += ((2, w_hh, _version(w_hh)),)
                w_hh = None
        if kind.is_cell and kind.op.startswith("rnn"):
            y = hn  # which torch's gradient needs as well
            gates = None if gates is None else hn
        ctx.save_for_backward(x, w_ih, w_hh, h0, b_ih, b_hh, c0, y, gates, cells)
        if kind.is_cell:
            return hn if cn is None else (hn, cn)
        return (y, hn) if cn is None else (y, hn, cn)

    @staticmethod
    @not_compiled
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Return the gradients of the inputs."""
        *given, y, gates, cells = ctx.saved_tensors
        wants, kind = ctx.needs_input_grad[1:], ctx.kind
        if all(grad is None for grad in grads):
            return (None,) * (1 + len(given))
        if kind.is_cell:
            grads = (None, *grads)
            if y is not None and kind.op.startswith("rnn"):
                y = y.unsqueeze(0)
                gates = None if gates is None else y
        for i, w, _ in ctx.unsaved:
            given[i] = w
        for i, as_it_was in enumerate(ctx.weights, 1):
            given[i] = as_saved(given[i], as_it_was)
        if ctx.biases:
            for i in range(2):
                given[4 + i] = as_saved(ctx.biases[i], ctx.biases[2 + i])

        def stock() -> tuple[Tensor | None, ...]:
            if any(_version(w) != version for _, w, version in ctx.unsaved):
                raise RuntimeError(_CHANGED)
            return _gradients(kind, given, grads, wants)

        if torch.is_grad_enabled() or torch.compiler.is_compiling() or gates is None:
            return None, *stock()
        x, w_ih, w_hh, h0, b_ih, _, c0 = given

        def ours(*grads: Tensor | None) -> Any:
            of = _host.load().recurrent_backward(
                *(kind.op, kind.is_reverse),
                *(wants[0], any(wants[i] for i in _WEIGHTS), kind.batch_sizes),
                *(x.unsqueeze(0) if kind.is_cell else x, w_ih, w_hh, h0),
                *(y, gates, c0, cells, *_aligned(grads)),
            )
            if of is None:
                return None
            of_x, *rest = _wanted(_in_order(of, b_ih), wants)
            if kind.is_cell and of_x is not None:
                of_x = of_x.squeeze(0)
            return of_x, *rest

        return None, *run(f"{kind.op}_backward", ours, grads, stock)


_apply = lean_apply(Layer)

_CHANGED = (
    "one of the variables needed for gradient computation has been modified by an "
    "inplace operation: a weight of a recurrent layer, whose forward is repeated here"
)

_WEIGHTS = (1, 2, 4, 5)
"""Which inputs of a layer are."""


def _version(w: Tensor) -> int:
    return 0 if w.is_inference() else w._version


def _aligned(grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """Gradients of y, h and c as rows take them."""
    found = [None if grad is None else grad.contiguous() for grad in grads]
    if (of_y := grads[0]) is not None and of_y.stride(2) == 1:
        found[0] = of_y
    return [*found, None][:3]


def _in_order(
    of: tuple[Tensor | None, ...], b_ih: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients as the inputs stand; both biases have the same but of gru."""
    of_x, of_w_ih, of_w_hh, of_b_ih, of_b_hh, of_h0, of_c0 = of
    if of_b_ih is not None and of_b_hh is None:
        of_b_hh = of_b_ih if b_ih is None else of_b_ih.clone()
    return of_x, of_w_ih, of_w_hh, of_h0, of_b_ih, of_b_hh, of_c0


def _wanted(
    of: tuple[Tensor | None, ...], wants: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    return tuple(g if want else None for g, want in zip(of, wants, strict=True))


def _layer(kind: _Kind, given: tuple[Any, ...]) -> Any:
    """(y, h, c, gates, cells) by ours, or else by stock without the last two."""

    def stock() -> Any:
        y, hn, cn = _stock_layer(kind, given)
        return y, hn, cn, None, None

    x, *rest = given
    ours = _host.load().recurrent_layer
    args = (
        *(kind.op, kind.is_reverse, kind.is_cell, kind.batch_sizes),
        *(x.unsqueeze(0) if kind.is_cell else x, *rest),
    )
    return run(kind.op, ours, args, stock)


def _stock_layer(kind: _Kind, given: Any) -> _Parts:
    """By torch's function for a layer, which knows no reverse direction alone."""
    x, w_ih, w_hh, h0, b_ih, b_hh, c0 = given
    op, is_reverse = kind.op, kind.is_reverse
    if kind.is_cell:
        function = getattr(torch._C._VariableFunctions, f"{op}_cell")
        h = function(x, h0 if c0 is None else (h0, c0), w_ih, w_hh, b_ih, b_hh)
        h, c = (h, None) if c0 is None else h
        return h.unsqueeze(0), h, c
    params = [w for w in (w_ih, w_hh, b_ih, b_hh) if w is not None]
    function = getattr(torch._C._VariableFunctions, op)
    if kind.batch_sizes is not None:
        return _stock_packed(kind, function, params, given)
    rest = (params, b_ih is not None, 1, 0.0, True, False, False)
    if is_reverse:
        x = x.flip(0)
    if c0 is None:
        y, hn = function(x, h0.unsqueeze(0), *rest)
    else:
        y, hn, cn = function(x, (h0.unsqueeze(0), c0.unsqueeze(0)), *rest)
    return (
        y.flip(0) if is_reverse else y,
        hn.squeeze(0),
        cn.squeeze(0) if op == "lstm" else None,
    )


def _stock_packed(
    kind: _Kind, function: Callable[..., Any], params: list[Tensor], given: Any
) -> _Parts:
    """Of a packed sequence, whose reverse direction comes with the other alone."""
    x, _, _, h0, b_ih, _, c0 = given
    n = 1 + kind.is_reverse
    states = [torch.stack([state] * n) for state in (h0, c0) if state is not None]
    y, *ends = function(
        *(x.squeeze(0), kind.batch_sizes),
        states[0] if c0 is None else tuple(states),
        *(params * n, b_ih is not None, 1, 0.0, True, kind.is_reverse),
    )
    y = y[:, -h0.size(1) :].contiguous().unsqueeze(0)
    hn, cn = [*(end[-1] for end in ends), None][:2]
    return y, hn, cn


def _gradients(
    kind: _Kind,
    given: list[Tensor | None],
    grads: tuple[Tensor | None, ...],
    wants: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """By torch's operators, differentiable where autograd is on."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that a graph ends here unless it is to go on: one may be of another.
        given = [
            None
            if t is None
            else (t.view_as(t) if again else t.detach().requires_grad_(want))
            for t, want in zip(given, wants, strict=True)
        ]
        outputs = _stock_layer(kind, given)
        pairs = [
            (y, grad)
            for y, grad in zip(outputs, grads, strict=False)
            if grad is not None
        ]
        found = iter(
            torch.autograd.grad(
                [y for y, _ in pairs],
                [t for t, want in zip(given, wants, strict=True) if want],
                [grad for _, grad in pairs],
                create_graph=again,
                allow_unused=True,
            )
        )
    return tuple(next(found) if want else None for want in wants)


def _layers(op: str, batch_sizes: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
    """All layers, given torch's arguments; with nodes where gradients are wanted."""
    x, hx, params, has_biases, n_layers, dropout, train, bidirectional, first = args
    states = (hx,) if isinstance(hx, Tensor) else hx
    starts = [state.unbind(0) for state in states]
    n_weights, n_directions = 4 if has_biases else 2, 2 if bidirectional else 1
    is_composed = (
        op != "lstm" or batch_sizes is not None or not torch._C._get_mkldnn_enabled()
    )
    if batch_sizes is not None and torch.is_grad_enabled():
        batch_sizes = batch_sizes.clone()  # a program may change them before backward
    kinds = [_Kind(op, d == 1, batch_sizes, is_composed) for d in range(n_directions)]
    if first:
        x = x.transpose(0, 1)
    if batch_sizes is not None:
        x = x.unsqueeze(0)
    elif not first and is_composed:
        x = x.view_as(x)  # as torch, which saves a view
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(n_layers):
        found = []
        for direction in range(n_directions):
            part = layer * n_directions + direction
            w = params[part * n_weights : (part + 1) * n_weights]
            biases = w[2:] or [None, None]
            h0, c0 = [*(start[part].contiguous() for start in starts), None][:2]
            y, *end = _apply(kinds[direction], x, *w[:2], h0, *biases, c0)
            found.append(y)
            ends.append(tuple(end))
        x = found[0] if n_directions == 1 else torch.cat(found, -1)
        if dropout and train and layer < n_layers - 1:
            x = _VF.dropout(x, dropout, True)
    if n_directions == 1 and is_composed:
        x = x.clone()  # gradients need y, which a program may change in place
    if batch_sizes is not None:
        x = x.squeeze(0)
    if first:
        x = x.transpose(0, 1)
    return x, *(torch.stack(all_ends) for all_ends in zip(*ends, strict=True))


_CELLS = {op: _Kind(op, False, None, True, True) for op in OPERATORS}


def _cell(op: str, x: Tensor, hx: Any, *weights: Tensor | None) -> Any:
    """A cell, given torch's arguments, as a node where gradients are wanted."""
    h0, c0 = hx if op == "lstm" else (hx, None)
    w_ih, w_hh, *biases = weights
    c0 = c0 if c0 is None else c0.contiguous()
    return _apply(_CELLS[op], x, w_ih, w_hh, h0.contiguous(), *biases, c0)


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    c.lend(recurrent_layers=_layers, recurrent_cell=_cell)
    table = torch.jit._builtins._get_builtin_table()
    for name, n in _ARGUMENTS.items():
        stock = getattr(torch._C._VariableFunctions, name)
        stand_in = _stand_in(getattr(c, name), stock, n)
        ledger.set_attribute(_VF, name, stand_in)
        ledger.set_item(table, id(stand_in), f"aten::{name}")


def _stand_in(
    accelerated: Callable[..., Any], stock: Callable[..., Any], n_arguments: int
) -> Any:
    @traced_as(stock)
    def recurrent(*args: Any, **kwargs: Any) -> Any:
        try:
            if len(args) == n_arguments and not kwargs:
                found = accelerated(*args)
                if found is not None:
                    return found
            return stock(*args, **kwargs)
        except BaseException as error:
            hide(error)
            raise

    recurrent.__name__ = stock.__name__
    recurrent.stock = stock  # type: ignore[attr-defined]
    recurrent.__qualname__ = stock.__qualname__
    recurrent.__module__ = stock.__module__
    return recurrent
