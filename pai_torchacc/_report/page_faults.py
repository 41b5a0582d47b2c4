"""Page faults of this process since the package was loaded, or since a reset."""

from __future__ import annotations

try:
    import resource
except ImportError:  # Windows, where the package still imports
    resource = None  # type: ignore[assignment]

_start = 0
_n_resets = -1


def count() -> int:
    """Minor faults; 0 where the system does not tell."""
    return _minor() - _start


def reset() -> None:
    """Count from here."""
    global _start, _n_resets  # noqa: PLW0603
    _start = _minor()
    _n_resets += 1


def since() -> str:
    """When the count began, in words."""
    return "the last reset" if _n_resets else "the package was loaded"


def _minor() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


reset()
