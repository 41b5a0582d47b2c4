"""The room of reduced precision: float32 operators that multiply in bfloat16.

At ``numerics="fast"`` linear layers, ``torch.mm`` and ``torch.addmm``, convolutions and
attention of unmodified models may round their operands to bfloat16, multiply them by
torch's own libraries, and give back float32. Weights, gradients and optimizer states
stay float32. Each operator does so only where the calibration table says that it is
faster on this kind of CPU; inside the user's own ``torch.autocast``, whichever way it
is set there, none does, nor do the gradients of what was called there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pai_torchacc._config import Config
from pai_torchacc._options import names_checked

_is_learnt: bool | None = None


def asked(config: Config) -> Config:
    """The configuration with this room open, all else as it was.

    For switches that open it by another name; ``numerics="fast"`` opens it by its own.
    """
    if config.lent is not None:
        return config
    lent = "operator_fusion" not in config.features, config.numerics
    features = names_checked((*config.features, "operator_fusion"))
    return replace(config, features=features, numerics="fast", lent=lent)


def given_back(config: Config) -> Config:
    """The configuration without what :func:`asked` has changed."""
    if config.lent is None:
        return config
    was_off, numerics = config.lent
    gone = "operator_fusion" if was_off else None
    features = tuple(name for name in config.features if name != gone)
    return replace(config, features=features, numerics=numerics, lent=None)


def reason(c: Any, table: Any) -> str | None:
    """Why nothing runs in bfloat16 here by this table; None where something will."""
    from pai_torchacc import calibration

    if not c.bf16_hardware():
        return "this CPU has no instruction for products of bfloat16"
    rows = set(c.bf16_rows())
    points, _ = calibration.points(
        table, c.operators(), "fast", has_amx="amx" in c.bf16_hardware()
    )
    if any((point[0], point[5]) in rows for point in points):
        return None
    if not any((m.op, m.row) in rows for m in table.measurements):
        return f"the table {table.name} has no measurement of bfloat16"
    return f"by the table {table.name} bfloat16 is nowhere faster"


def idle(c: Any, config: Config, claims: set[tuple[str, str | None]]) -> set[str]:
    """Operators that nothing but this room serves, and that it will not serve either.

    Gradients are kept for the sake of their forward calls, which decide.
    """
    alone = operators_alone(c)
    if config.numerics != "fast":
        return alone
    rows = c.bf16_rows()
    served = {op for op, row in rows if (op, row) in claims or c.pinned(op) == row}
    return {op for op in alone if op.removesuffix("_backward") not in served}


def learn(c: Any) -> None:
    """Show the extension where torch's nodes keep their names, once a process.

    By them gradients of convolutions and products know how their forward calls ran;
    without them these gradients stay in float32, and so do products.
    """
    global _is_learnt  # noqa: PLW0603
    from pai_torchacc import _host

    if _is_learnt is None and c.bf16_hardware():
        _is_learnt = _host.aside(_learn, c)


def _learn(c: Any, torch: Any) -> bool:
    x = torch.ones(2, dtype=torch.float32, device="cpu", requires_grad=True)
    y = x.exp()
    nodes = [made.grad_fn for made in (y, y.exp(), x.exp())]
    try:
        return bool(c.node_learn(tuple((node, node._sequence_nr()) for node in nodes)))
    except (AttributeError, TypeError):
        return False  # this torch is unlike those known


def operators_alone(c: Any) -> set[str]:
    """Operators that have no other rows than those of this room."""
    rounding = set(c.bf16_rows())
    return {
        name
        for name, _, rows in c.operators()
        if rows and all((name, row[0]) in rounding for row in rows)
    }
