"""What the package brought: the kernels' sources, and machine code where nvcc was.

Written by tools/kernels.py when the package was built.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pai_torchacc.cuda_kernels.target import Target, named

FOLDER = Path(__file__).parents[1] / "_kernels"

SCHEMA = 1


@dataclass(frozen=True)
class Source:
    """The text of a unit, and of the headers that it includes, by their names."""

    name: str
    text: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Shipped:
    """All units."""

    content: dict[str, Any]

    def has_fat_binaries(self) -> bool:
        """Whether nvcc was there."""
        return any(u["fat_binary"] for u in self.content["units"].values())

    def source(self, unit: str) -> Source:
        """What NVRTC compiles; LookupError where the package lacks it."""
        entry, texts = self.content["units"][unit], self.content["texts"]
        headers = {name: texts[name] for name in entry["headers"]}
        return Source(entry["source"], texts[entry["source"]], headers)

    def fat_binary(self, unit: str, target: Target) -> bytes | str:
        """A unit's, or why there is none for these devices and this driver."""
        expected = self.content["units"][unit]["fat_binary"]
        if expected is None:
            return "the package was built without nvcc"
        if reason := self._why_unfit(target):
            return reason
        try:
            code = (FOLDER / f"{unit}.fatbin").read_bytes()
        except OSError as error:
            return f"the package's fat binary cannot be read: {error.strerror}"
        if hashlib.sha256(code).hexdigest() != expected:
            return "the package's fat binary is not the one that it was built with"
        return code

    def _why_unfit(self, target: Target) -> str | None:
        major, minor = self.content["nvcc"]["version"]
        if reason := target.why_too_old(major):
            return reason
        reads_ptx = target.driver >= 1000 * major + 10 * minor
        for capability in target.capabilities:
            same = [
                a
                for a in self.content["machine_code"]
                if a // 10 == capability // 10 and a <= capability
            ]
            if not same and not (reads_ptx and self.content["ptx"] <= capability):
                return f"the package has no machine code for {named(capability)}"
        return None


@cache
def contents() -> Shipped | None:
    """None where the package was built without them."""
    try:
        content = json.loads((FOLDER / "kernels.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Shipped(content) if content.get("schema") == SCHEMA else None
