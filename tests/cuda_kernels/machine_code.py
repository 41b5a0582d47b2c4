"""What compilers say of kernels, and the plans that lie beside the kernels.

The plan of ``<unit>.cu`` is ``<unit>.toml``, a table a kernel by its name without the
type of its elements::

    [adam_step]
    registers = 40   # most that a thread has; without it DEFAULT_REGISTERS
    packs = true     # moves 16 bytes by one instruction, both ways
    stores = false   # ... but only reads so

Kernels without a table need none: no plan allows local memory, which spills use.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

DEFAULT_REGISTERS = 64
"""With which half of the threads that a multiprocessor can have are there."""

TYPES = re.compile(r"_(?:f32|f64|f16|bf16)$")

_ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<architecture>\w+)'\n"
    r"(?P<said>(?:(?!.*Compiling entry function).*\n?)*)"
)
_READS = re.compile(r"ld\.global\S*\.(?:v4\.\w*32|v2\.\w*64)\b")
_WRITES = re.compile(r"st\.global\S*\.(?:v4\.\w*32|v2\.\w*64)\b")


def plan_of(source: Path) -> dict[str, dict[str, Any]]:
    """By kernel."""
    file = source.with_suffix(".toml")
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def plan_for(plan: dict[str, dict[str, Any]], kernel: str) -> dict[str, Any]:
    """Of one kernel with the type of its elements in its name."""
    return plan.get(kernel) or plan.get(TYPES.sub("", kernel)) or {}


def faults(said: str, plan: dict[str, dict[str, Any]]) -> list[str]:
    """What ``ptxas -v`` says that the plan does not allow."""
    found, seen = [], set()
    for entry in _ENTRY.finditer(said):
        kernel, text = entry["kernel"], entry["said"]
        where = f"{kernel} for {entry['architecture']}"
        wanted = plan_for(plan, kernel)
        seen |= {kernel, TYPES.sub("", kernel)}
        memory = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
            r"(\d+) bytes spill loads",
            text,
        )
        registers = re.search(r"Used (\d+) registers", text)
        if not memory or not registers:
            found.append(f"{where}: what does the compiler say? {text}")
            continue
        if any(int(n) for n in memory.groups()):
            found.append(f"{where}: {memory[0]}")
        most = wanted.get("registers", DEFAULT_REGISTERS)
        if int(registers[1]) > most:
            found.append(f"{where}: {registers[1]} registers, planned {most}")
    found += [f"{kernel}: planned, and not there" for kernel in plan.keys() - seen]
    return found


def pack_faults(ptx: str, plan: dict[str, dict[str, Any]]) -> list[str]:
    """Kernels that are to move 16 bytes at once and do not."""
    found = []
    for entry in re.split(r"\.visible \.entry ", ptx)[1:]:
        [kernel] = re.findall(r"^\w+", entry)
        wanted = plan_for(plan, kernel)
        if not wanted.get("packs"):
            continue
        if not _READS.search(entry):
            found.append(f"{kernel}: no read of 16 bytes")
        if wanted.get("stores", True) and not _WRITES.search(entry):
            found.append(f"{kernel}: no write of 16 bytes")
    return found
