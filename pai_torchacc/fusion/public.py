"""What users call."""

from __future__ import annotations

from collections.abc import Iterable

from pai_torchacc import _options, _switch
from pai_torchacc._switch import Handle


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
