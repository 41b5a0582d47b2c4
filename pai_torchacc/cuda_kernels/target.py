"""What machine code has to be for: the devices and the driver of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class NoTarget(RuntimeError):
    """There is no device or no driver; the text says which."""


def named(capability: int) -> str:
    """As compilers name it: ``sm_90``."""
    return f"sm_{capability}"


@dataclass(frozen=True)
class Target:
    """Compute capabilities, 90 for 9.0, and the driver's version, 13000 for 13.0."""

    driver: int
    capabilities: tuple[int, ...]

    def why_too_old(self, major: int) -> str | None:
        """Why the driver takes no machine code of this CUDA's compilers, or None."""
        if self.driver // 1000 >= major:
            return None
        has = f"{self.driver // 1000}.{self.driver % 1000 // 10}"
        return f"driver too old: it is for CUDA {has}, needs {major}.0"


def of_machine(c: Any) -> Target:
    """Load the driver and ask it. Not before the program itself has used CUDA.

    A process that has loaded it cannot use CUDA in forks.
    """
    trouble, driver, capabilities = c.cuda_target()
    if trouble:
        raise NoTarget(trouble)
    return Target(driver, tuple(sorted(set(capabilities))))
