"""Overrides at the dispatcher's key CUDA: which, and why not.

Rows serve that cannot lose to stock by construction, and others by a table of the GPU's
(:mod:`~pai_torchacc.calibration.on_cuda`). An operator is overridden also where the
table has it nowhere faster: that table speaks for one kind of GPU and for places that
were measured, and others may be called. On machines without CUDA nothing is registered
and no driver is looked for; on those with it, the driver is not started before the
program's own calls do.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pai_torchacc._options import NUMERICS
from pai_torchacc.calibration import in_use
from pai_torchacc.fusion.foreign import overridden

if TYPE_CHECKING:
    from pai_torchacc._config import Config
    from pai_torchacc.calibration import Table

PREFIX = "cuda:"
"""Before the names of operators, where overrides of both devices are named."""

_line: str | None = None


def kernels() -> Any:
    """Who provides machine code; None where this torch has no CUDA."""
    torch = sys.modules["torch"]
    if not torch.cuda._is_compiled() or torch.version.hip:
        return None
    from pai_torchacc import cuda_kernels

    return cuda_kernels


def rows(c: Any) -> list[tuple[str, str, str, bool, bool]]:
    """What ``cuda_rows()`` gives, of this switch's operators."""
    owner = c.op_switches()
    return [row for row in c.cuda_rows() if owner[row[0]] == "operator_fusion"]


def places(c: Any, config: Config, wanted: set[str]) -> set[str]:
    """The overrides that belong at the key CUDA.

    Parameters
    ----------
    c : module
        The extension.
    config : Config
        What is asked for.
    wanted : set of str
        Operators that may be served.
    """
    global _line  # noqa: PLW0603
    if why_none := c.cuda_reason():
        _line = f"none: {why_none}"
        return set()
    c.cuda_set_level(config.numerics)
    names = {op for _, op in c.cuda_override_names()}
    most = NUMERICS.index(config.numerics)
    has_table = in_use.table_on_cuda() is not None
    served = {
        op
        for op, _, level, needs_no_table, _ in rows(c)
        if (needs_no_table or has_table) and NUMERICS.index(level) <= most
    }
    kept = names & wanted & served - _foreign(c).keys()
    _line = (
        f"{len(kept)} operators" if kept else "none: nothing is wanted that is there"
    )
    return {PREFIX + op for op in kept}


def open_gates(c: Any, wanted: set[str]) -> None:
    """Let operators be served on CUDA whatever keeps their rows of the CPU.

    Who is closed there for its numbers may have other rows here.
    """
    for op in {op for op, *_ in rows(c)}:
        c.set_cuda_gate(op, "" if op in wanted else "excluded")


def forget() -> None:
    """Calls on CUDA come to us no more."""
    global _line  # noqa: PLW0603
    _line = None


def line() -> str | None:
    """How many operators may be served on CUDA, or why none; None where all is off."""
    return _line


def table_line(c: Any) -> str | None:
    """The table that decides on CUDA; None where nothing is served there.

    Once the program uses CUDA, also the devices that it does not speak for.
    """
    if not _line or c.cuda_reason():
        return None
    if (table := in_use.table_on_cuda()) is None:
        return "none"
    others = ", ".join(f"{i} ({name})" for i, name in _others(c, table))
    elsewhere = f"; not for {others}" if others else ""
    return f"{table.name}, of {table.device}{elsewhere}"


def _others(c: Any, table: Table) -> list[tuple[int, str]]:
    """Devices that the table is not of, once the program has started the driver."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return []
    names = [(i, c.cuda_name(i)) for i in range(torch.cuda.device_count())]
    return [(i, name) for i, name in names if name != table.device]


def remarks(c: Any) -> list[str]:
    """Who overrode our operators on CUDA; what is lacking there."""
    if not _line:
        return []
    table = in_use.table_on_cuda()
    if why_none := c.cuda_reason():
        return [f"{table.name} is of {table.device}: {why_none}"] if table else []
    found = [f"{op} on CUDA: overridden by {who}" for op, who in _foreign(c).items()]
    if table:
        found += [
            f"{table.name} is of {table.device}: it decides nothing on {i} ({name})"
            for i, name in _others(c, table)
        ]
    if why := c.cublaslt_trouble():
        found.append(f"linear layers on CUDA are stock's: {why}")
    return found


def _foreign(c: Any) -> dict[str, str]:
    """Operators whose kernel on CUDA is not torch's own, and whose it is."""
    installed = {
        name.removeprefix(PREFIX)
        for name in c.override_installed()
        if name.startswith(PREFIX)
    }
    return overridden(c.cuda_override_names(), installed, "CUDA")
