"""What can be asked for: one immutable :class:`Config` is the state of the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

NO_CAP = 2**64 - 1

FILLS = (None, "zero", "junk")
"""What new storages are filled with, in the order of the extension's codes."""


@dataclass(frozen=True)
class PoolOptions:
    """How the memory pool is to be."""

    device: str | None = None
    cap: int | None = None
    reserve: int = 0
    trim: str | int = "auto"
    policy: str = "exact_fit"
    fill: str | None = None
    history: int = 0


@dataclass(frozen=True)
class RateOptions:
    """How learning rates are to be adapted."""

    policy: str = "auto"
    floor: float | None = None
    max_growth: float = 1.5
    verbose: bool = False


@dataclass(frozen=True)
class DdpOptions:
    """How DistributedDataParallel is to be tuned."""

    comm: str = "none"


@dataclass(frozen=True)
class WatchOptions:
    """How ranks are to be watched."""

    after: float = 10.0


@dataclass(frozen=True)
class Config:
    """Everything that can be switched or chosen."""

    features: tuple[str, ...] = ()
    ops: frozenset[str] | None = None
    numerics: str = "close"
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    verify: int = 0
    calibration: str | None = None
    pool: PoolOptions = field(default_factory=PoolOptions)
    rate: RateOptions = field(default_factory=RateOptions)
    ddp: DdpOptions = field(default_factory=DdpOptions)
    watch: WatchOptions = field(default_factory=WatchOptions)
    training: str | None = None
    parallelism: str = "auto"
    """The mode of data parallelism."""
    automatic: bool = False
    """Plans are also made of what nobody has given to ``optimize()``."""
    lent: tuple[bool, str] | None = None
    """What ``training`` changed: whether fusion was off, and the numerics before."""

    def wanted(self, operators: Iterable[str]) -> set[str]:
        """Those of these operators that include, exclude and ops leave."""
        asked = [names for names in (self.ops, self.include) if names is not None]
        return set(operators).intersection(*asked) - self.exclude


OFF = Config()
