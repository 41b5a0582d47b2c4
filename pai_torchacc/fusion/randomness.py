"""Random numbers of the CPU: dropout of all kinds, and ``bernoulli_``.

Torch's own stream is replayed, so that what is drawn, and what the generator gives
next, are stock's bits. An override of ``aten::bernoulli_`` serves every caller. The
stand-ins for ``torch._VF.dropout`` and ``dropout_``, which
``torch.nn.functional.dropout`` and ``nn.Dropout`` call, also do in one pass what torch
does in three; :class:`Dropout` is the node in the graph.

None of it runs before :func:`prove` has seen torch's generators work as we know them.
"""

from __future__ import annotations

import _thread
import time
from typing import Any

import torch
from torch import _VF, Tensor

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.node import lean_apply, named_like
from pai_torchacc.fusion.shadow import checked, run

OPERATORS = ("bernoulli", "dropout", "attention_dropout")

_BY_NAME = {"dropout": "dropout", "dropout_": "dropout_in_place"}
"""Functions of torch._VF, and of the extension."""

_PATIENCE_S = 2.0
"""For which a thread of torch's is waited for, which has one number to draw."""

_KEEPS = (0.5, 0.9, 1 / 3, 0.999, 2.0**-30, 0.0, 1.0)
_LENGTHS = (1, 37, 700, 311)


def prove(c: Any, torch: Any) -> dict[str, str]:
    """By operator, why it must not run with this torch; empty when all is well.

    Torch draws from generators that nobody else has, ours draws from their like, and
    the bits and the states afterwards are compared. The lock is proved by a thread that
    has to wait for it. The program's own generators are not touched.
    """
    try:
        doubt = _doubt(c, torch)
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        doubt = f"torch's generators could not be asked: {error}"
    c.generator_set_proved(not doubt)
    return dict.fromkeys(OPERATORS, doubt) if doubt else {}


def _doubt(c: Any, torch: Any) -> str:
    samples = [_generator(torch, seed, seed % 700) for seed in (3, 1234567, 2**40 + 5)]
    if not c.generator_learn(tuple((g._cdata, g.get_state()) for g in samples)):
        return "torch's generators are not as we know them"
    if not _is_lock(c, torch, samples[0]):
        return "the lock of torch's generators is not known"
    c.generator_set_proved(True)
    keeps = zip(_KEEPS * 2, (*samples, *samples[::-1]) * 3, strict=False)
    if not all(_agrees(c, torch, keep, generator) for keep, generator in keeps):
        return "torch draws other numbers"
    if not all(_divides(torch, keep) for keep in _KEEPS if keep):
        return "torch divides by numbers in another way"
    return ""


def _generator(torch: Any, seed: int, n_drawn: int) -> Any:
    generator = torch.Generator("cpu").manual_seed(seed)
    torch.empty(n_drawn, dtype=torch.int32, device="cpu").random_(generator=generator)
    return generator


def _floats(torch: Any, n: int) -> Any:
    return torch.zeros(n, dtype=torch.float32, device="cpu")


def _is_lock(c: Any, torch: Any, generator: Any) -> bool:
    """Whether a thread that draws from a generator waits for what we take for its lock.

    The generator is the thread's own until it has drawn.
    """
    drawn = _floats(torch, 1)
    done = _thread.allocate_lock()
    done.acquire()

    def draw() -> None:
        try:
            drawn.bernoulli_(0.5, generator=generator)
        finally:
            done.release()

    if not c.generator_try_lock(generator._cdata):
        return False
    is_awaited = False
    try:
        _thread.start_new_thread(draw, ())
        end = time.monotonic() + _PATIENCE_S
        while not is_awaited and done.locked() and time.monotonic() < end:
            time.sleep(0.0001)
            is_awaited = c.generator_is_awaited(generator._cdata)
    finally:
        c.generator_end_try(generator._cdata, is_awaited)
    return is_awaited and done.acquire(timeout=_PATIENCE_S)


def _agrees(c: Any, torch: Any, keep: float, generator: Any) -> bool:
    twin = torch.Generator("cpu")
    twin.set_state(generator.get_state())
    for n in _LENGTHS:
        ours, stock = _floats(torch, n), _floats(torch, n)
        stock.bernoulli_(keep, generator=generator)
        if not c.bernoulli_draw(ours, keep, twin._cdata):
            return False
        if not torch.equal(ours, stock):
            return False
        if not torch.equal(twin.get_state(), generator.get_state()):
            return False
    return True


def _divides(torch: Any, keep: float) -> bool:
    """Whether dropout's scale is one quotient of floats, as with two tensors."""
    ones = _floats(torch, 64) + 1
    return bool(torch.equal(ones.clone().div_(keep), ones / (ones * keep)))


class Dropout(torch.autograd.Function):
    """What has been dropped, with its gradient; keeps which elements were not."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, x: Tensor, made: tuple[Tensor, Tensor], keep: float
    ) -> Tensor:
        """Hand out the result; made is that with its mask."""
        y, mask = made
        ctx.set_materialize_grads(False)
        ctx.keep = keep
        ctx.save_for_backward(mask)
        return y

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradient of x."""
        (mask,) = ctx.saved_tensors
        if grad is None:
            return None, None, None
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _gradient(grad, mask, ctx.keep), None, None
        of_x = run(
            "dropout_backward",
            _host.load().dropout_gradient,
            (grad, mask, ctx.keep),
            lambda: _gradient(grad, mask, ctx.keep),
        )
        return of_x, None, None


def _gradient(grad: Tensor, mask: Tensor, keep: float) -> Tensor:
    """By torch's operators, differentiable: a product with forward's noise."""
    return grad * mask.to(torch.float32).div_(keep)


def _checked(x: Tensor, p: float, keeps: bool) -> Any:
    """What the extension makes, compared with what stock draws from the same state.

    Stock draws first, from a twin of the program's generator, which no other thread may
    see go back. Where one has drawn since, there is nothing to compare: the call is
    stock's. The mask is compared by the result.
    """
    c = _host.load()
    before: Tensor | None = None

    def stock() -> Any:
        nonlocal before
        before = torch.get_rng_state()
        twin = torch.Generator("cpu").set_state(before)
        noise = torch.empty_like(x).bernoulli_(1 - p, generator=twin)
        mask = noise.bool()
        y = x.detach() * noise.div_(1 - p)
        return (y, mask) if keeps else y

    def ours(*args: Any) -> Any:
        if before is not None and not torch.equal(torch.get_rng_state(), before):
            c.refuse("dropout", "argument")
            return None
        return c.dropout_parts(*args)

    with torch.no_grad():
        return checked("dropout", ours, (x, p, keeps), stock)


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    stocks = {name: getattr(torch._C._VariableFunctions, name) for name in _BY_NAME}
    c.lend(
        dropout_node=lean_apply(named_like(Dropout, "Mul")),
        dropout_checked=_checked,
        stock_dropout=stocks["dropout"],
        stock_dropout_in_place=stocks["dropout_"],
    )
    table = torch.jit._builtins._get_builtin_table()
    for name, accelerated in _BY_NAME.items():
        stand_in = _stand_in(getattr(c, accelerated), stocks[name])
        ledger.set_attribute(_VF, name, stand_in)
        ledger.set_item(table, id(stand_in), f"aten::{name}")


def _stand_in(accelerated: Any, stock: Any) -> Any:
    @traced_as(stock)
    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        try:
            return accelerated(input, p, train)
        except BaseException as error:
            hide(error)
            raise

    dropout.__name__ = stock.__name__
    dropout.stock = stock
    dropout.__qualname__ = stock.__qualname__
    dropout.__module__ = stock.__module__
    return dropout
