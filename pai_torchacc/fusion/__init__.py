"""``operator_fusion``: drop-in kernels, fused operators, optimizer steps.

Two kinds of change carry it. Overrides of aten operators at the CPU key, registered by
the extension, serve every caller and leave autograd to torch. Stand-ins for a few
Python functions and methods reach what has no single aten operator below it; each is a
plain Python function that torch.compile, torch.jit and signature inspection see
through. Both ask the same chooser, and both end in stock when it says no.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pai_torchacc import _counters, _features, _host, _options, _switch
from pai_torchacc._switch import Handle
from pai_torchacc.calibration import in_use
from pai_torchacc.fusion import cuda, custom, precision, tf32
from pai_torchacc.fusion.custom import register
from pai_torchacc.fusion.foreign import Yielding, chains, overridden

if TYPE_CHECKING:
    from pai_torchacc._config import Config

__all__ = ["enable_operator_fusion", "register"]

_ledger = Yielding()
_attention_ledger = Yielding()
_foreign: dict[str, str] = {}
_unserved: dict[str, str] = {}
_kept: set[str] = set()
"""Operators whose overrides belong in the dispatcher as things stand."""

_doubts: dict[str, str] | None = None
_random_doubts: dict[str, str] | None = None
_is_warning_used_up = False


def install(c: Any, config: Config) -> str | None:
    """Switch on as ``config`` says; the reason when that cannot be.

    Overrides that ``config`` does not want stay registered, shut, until the next quiet
    moment: see :func:`leftover`.
    """
    c.shadow_every(config.verify)
    barred = in_use.install(c, config)
    wanted = config.wanted(name for name, _, _ in c.operators())
    _find_foreign(c)
    unproven = _unproven(c)  # which opens gates: before there is a way to them
    idle = precision.idle(c, config, in_use.claims())
    _find_unserved(c, config, wanted - idle, barred)
    if config.numerics == "fast":
        precision.learn(c)
    trouble = _install_overrides(c, config, wanted, wanted - idle - _unserved.keys())
    if trouble:
        return trouble
    _install_stand_ins(c)
    _install_calls(c)
    custom.install(c)
    _install_attention(c, config)
    if (room := cuda.kernels()) and room.reason(sys.modules["torch"]) is None:
        room.install(c)
    _set_tf32(c, config, wanted)
    _open_gates(c, wanted, barred | unproven)
    return None


def _set_tf32(c: Any, config: Config, wanted: set[str]) -> None:
    is_fast = config.numerics == "fast" and "linear_act" in wanted
    if is_fast and c.cuda_reason() is None:
        tf32.install(sys.modules["torch"])
    else:
        tf32.remove(sys.modules["torch"])


def leftover(c: Any) -> list[str]:
    """Operators whose overrides are in the dispatcher but should not be."""
    c.windows_look()  # here, too, calls may leave that had to stay
    return [name for name in c.override_installed() if name not in _kept]


def _unproven(c: Any) -> set[str]:
    """Operators whose bits this torch does not confirm; found out once a process."""
    global _doubts  # noqa: PLW0603
    from pai_torchacc.fusion.optim import clipping, proof
    from pai_torchacc.fusion.optim.steps import OPERATORS

    steps = {*OPERATORS, clipping.OPERATOR}
    random = _unproven_random(c)
    if not _host.knows_rounding():
        return steps | random
    if _doubts is None:
        pinned = {op: c.pin(op, c.preferred_row(op)) for op in sorted(steps)}
        try:
            for op in steps:
                c.set_gate(op, "")
            _doubts = _host.aside(proof.prove, c) | _host.aside(clipping.prove, c)
        finally:
            for op, row in pinned.items():
                c.set_gate(op, "switched off")
                c.pin(op, row)
        _counters.discount(c, steps)
    return set(_doubts) | random


def _unproven_random(c: Any) -> set[str]:
    """Likewise, of those that draw random numbers."""
    global _random_doubts  # noqa: PLW0603
    from pai_torchacc.fusion import randomness

    if not _host.has_lean_paths():
        return set(randomness.OPERATORS)
    if _random_doubts is None:
        _random_doubts = _host.aside(randomness.prove, c)
    return set(_random_doubts)


def remove(c: Any) -> None:
    """Stop all kernels and undo every patch; dispatcher entries become leftover."""
    _kept.clear()
    _unserved.clear()
    cuda.forget()
    for name in operators(c):
        c.set_gate(name, "switched off")
    if room := cuda.kernels():
        room.remove(c)
    tf32.remove(sys.modules["torch"])
    c.scratch_clear()
    custom.remove(c)
    _attention_ledger.undo()
    _ledger.undo()
    chains.release("operator_fusion")
    if calls := sys.modules.get(f"{__name__}.calls"):
        calls.remove(c)


def status(c: Any) -> dict[str, Any]:
    """``draining``: dispatcher entries that wait for a quiet moment.

    ``left_to_stock``: operators that are not overridden, and why. ``cuda``: how many
    operators are overridden on CUDA devices, or why none is. ``cuda_table``: which
    calibration table decides there, ``"none"`` without one. ``cuda_kernels``: see
    :func:`pai_torchacc.cuda_kernels.status`.
    """
    waiting = leftover(c)
    found: dict[str, Any] = {}
    if waiting and not _kept:
        found["draining"] = len(waiting)
    if _unserved:
        found["left_to_stock"] = unserved()
    if line := cuda.line():
        found["cuda"] = line
    if line := cuda.table_line(c):
        found["cuda_table"] = line
    if room := cuda.kernels():
        found |= room.status(c)
    return found


def about(config: Config) -> str:
    """Level and table, for the log."""
    table = in_use.table()
    name = table.name if table else "no"
    return f"numerics {config.numerics}, {name} table"


def unserved() -> dict[str, str]:
    """Operators of aten that are left to stock, not even looked at, and why."""
    return dict(_unserved)


def remarks() -> list[str]:
    """Who overrode or patched what we do, before or after; who convolves on CUDA."""
    found = [f"{op}: overridden by {who}" for op, who in _foreign.items()]
    if c := _host.loaded():
        found += cuda.remarks(c)
    found += [
        remark
        for ledger in (_ledger, _attention_ledger, chains)
        for remark in ledger.remarks
    ]
    for why in sorted(set(_unserved.values())):
        names = ", ".join(sorted(op for op in _unserved if _unserved[op] == why))
        found.append(f"left to stock, {why}: {names}")
    if calls := sys.modules.get(f"{__name__}.calls"):
        found += calls.remarks()
    found += custom.remarks()
    if _kept:
        import torch

        from pai_torchacc.fusion import cudnn

        found += [*cudnn.remarks(torch), *tf32.remarks()]
        if room := cuda.kernels():
            found += room.remarks(_host.load())
    return found


def _rows() -> Any:
    """What sites have done, where any were open."""
    return sys.modules.get(f"{__name__}.sites.rows")


def document() -> dict[str, Any]:
    """``sites``: places of the program where modules were run as one, or were not."""
    found, c = _rows(), _host.loaded()
    return {"sites": found.entries(c)} if found and c else {}


def lines(content: dict[str, Any]) -> list[str]:
    """A table of them."""
    return _rows().lines(content["sites"]) if content["sites"] else []


def reset(c: Any) -> None:
    """Begin counting anew."""
    if found := _rows():
        found.reset(c)


def operators(c: Any) -> list[str]:
    """Operators that are this switch's."""
    return [op for op, owner in c.op_switches().items() if owner == "operator_fusion"]


def _open_gates(c: Any, wanted: set[str], barred: set[str]) -> None:
    for name in operators(c):
        if name not in wanted:
            gate = "excluded"
        elif name in _foreign:
            gate = "overridden by others"
        elif name in barred:
            gate = "numerics level"
        else:
            gate = ""
        c.set_gate(name, gate)
    cuda.open_gates(c, wanted)


def _find_foreign(c: Any) -> None:
    """Yield operators whose CPU kernel is not torch's own any more."""
    global _foreign  # noqa: PLW0603
    _foreign = overridden(c.override_names(), set(c.override_installed()), "CPU")


def _find_unserved(c: Any, config: Config, wanted: set[str], barred: set[str]) -> None:
    """Leave operators alone of which no call would be served: looking costs time too.

    A gradient that rounds follows its forward call, not the table.
    """
    names = {name for _, name in c.override_names()}
    served = {op for op, row in in_use.claims() if row}
    served |= {op for op in names if c.pinned(op)}
    if config.numerics == "fast":
        rounding = {op for op, _ in c.bf16_rows()}
        served |= {op for op in rounding if op.removesuffix("_backward") in served}
    _unserved.clear()
    for name in names & wanted - served:
        _unserved[name] = "numerics level" if name in barred else "not measured faster"


def _install_overrides(
    c: Any, config: Config, wanted: set[str], on_cpu: set[str]
) -> str | None:
    import torch

    names = {name for _, name in c.override_names()}
    _use_up_override_warning(torch)
    _kept.clear()
    _kept.update(names & on_cpu - _foreign.keys())
    _kept.update(cuda.places(c, config, wanted))
    return c.override_install(sorted(_kept))


def _use_up_override_warning(torch: Any) -> None:
    """Have torch give its once-only remark about overrides to us instead of the user.

    From a kernel registered in C it would go to stderr, past Python's warnings. The
    operator is one that nobody calls.
    """
    global _is_warning_used_up  # noqa: PLW0603
    if _is_warning_used_up:
        return
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        library = torch.library.Library("pai_torchacc", "FRAGMENT")
        try:
            library.define("overridden_once(Tensor x) -> Tensor")
            for _ in range(2):
                library.impl("overridden_once", abs, "CPU", allow_override=True)
        finally:
            library._destroy()
    _is_warning_used_up = True


def _install_stand_ins(c: Any) -> None:
    from pai_torchacc.fusion import (
        attention_dropout,
        embedding,
        linear,
        loss,
        norm_act,
        randomness,
        recurrent,
        rms_norm,
        sequential,
    )
    from pai_torchacc.fusion.by_name import relu_max_pool2d
    from pai_torchacc.fusion.linear import feed_forward, mlp
    from pai_torchacc.fusion.optim import clipping, steps

    if len(_ledger) or not _host.has_lean_paths():
        return
    steps.install(c, _ledger)
    clipping.install(c, _ledger)
    linear.install(c, _ledger)
    embedding.install(c, _ledger)
    mlp.install(c)
    norm_act.install(c)
    relu_max_pool2d.install(c)
    feed_forward.install(c, _ledger)
    loss.install(c, _ledger)
    randomness.install(c, _ledger)
    attention_dropout.install(c, _ledger)
    recurrent.install(c, _ledger)
    rms_norm.install(c, _ledger)
    sequential.install(c, "operator_fusion")


def _install_calls(c: Any) -> None:
    """Behind the overrides, of which entries remember what torch calls now."""
    if _host.has_lean_paths():
        from pai_torchacc.fusion import calls

        calls.install(c)


def _install_attention(c: Any, config: Config) -> None:
    """Only where something may be rounded: at other levels torch's own is as good."""
    if config.numerics != "fast" or not c.bf16_hardware():
        _attention_ledger.undo()
    elif not len(_attention_ledger) and _host.has_lean_paths():
        from pai_torchacc.fusion import attention

        attention.install(c, _attention_ledger)


def enable_operator_fusion(ops: Iterable[str] | None = None) -> Handle:
    """Switch on drop-in kernels, fused operators and optimizer steps.

    Part of a bare :func:`enable`. Other options stay as they are.

    Parameters
    ----------
    ops : iterable of str, optional
        Only these operators, by the names that :func:`report` prints. The name of a
        forward operator also stands for its ``_backward``.

    Raises
    ------
    ValueError, TypeError
        There is no such operator, or none is left.
    """
    lent = _switch.current().lent
    kept = None if lent is None else (False, lent[1])
    checked = _options.operators_checked(ops, "ops")
    return _switch.enable_one("operator_fusion", ops=checked, lent=kept)


_features.register(__name__, "operator_fusion", rank=1, is_in_bare_enable=True)
