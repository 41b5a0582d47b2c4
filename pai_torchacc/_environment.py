"""What ``PTAC_*`` variables ask for, checked; errors name the variable."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from typing import Any

from pai_torchacc import _features, _options
from pai_torchacc._config import OFF, Config

VARIABLES = (
    "PTAC_CALIBRATION",
    "PTAC_CPU_ISA",
    "PTAC_DISABLE",
    "PTAC_ENABLE",
    "PTAC_KERNEL_CACHE",
    "PTAC_NUMERICS",
    "PTAC_NVCC",
    "PTAC_REPORT",
    "PTAC_TRACEBACK",
    "PTAC_VERIFY",
)
"""What users may set; others of the prefix are of the package and of its tests."""

_OURS = (
    *("PTAC_DEVICE", "PTAC_HIDE_SYMBOLS", "PTAC_LAUNCH_PID", "PTAC_RANK_THREADS"),
    *("PTAC_REQUIRE_GPU", "PTAC_RUN_PID"),
)
_OURS_BEGIN = ("PTAC_TEST_", "PTAC_BENCH_")


def config() -> Config:
    """The options."""
    return Config(
        numerics=_checked("PTAC_NUMERICS", _options.numerics_checked, OFF.numerics),
        verify=_checked("PTAC_VERIFY", _verify, OFF.verify),
        calibration=os.environ.get("PTAC_CALIBRATION") or None,
    )


def features() -> tuple[str, ...]:
    """What ``enable()`` without names means here."""
    return _checked("PTAC_ENABLE", _names, _features.in_bare_enable())


def is_disabled() -> bool:
    """``PTAC_DISABLE`` beats everything."""
    return os.environ.get("PTAC_DISABLE", "") not in ("", "0", "false")


def _checked(variable: str, check: Callable[[str], Any], default: Any) -> Any:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        return check(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def _verify(text: str) -> int:
    try:
        every = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no integer from 0 on") from None
    return _options.verify_checked(every)


def _names(text: str) -> tuple[str, ...]:
    listed = [n.strip() for n in text.split(",") if n.strip()]
    if listed in ([], ["1"], ["true"]):
        return _features.in_bare_enable()
    named = [n for n in listed if n != "all"]
    if "all" in listed:
        named += _features.in_bare_enable()
    try:
        return _options.names_checked(named)
    except ValueError as error:
        raise ValueError(f"{error}; or all") from None


def unknown_variables() -> list[str]:
    """A sentence for each ``PTAC_*`` variable that nothing reads."""
    return [
        f"{name} is no variable of pai_torchacc; did you mean "
        f"{difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.0)[0]}?"
        for name in sorted(os.environ)
        if name.startswith("PTAC_")
        and name not in (*VARIABLES, *_OURS)
        and not name.startswith(_OURS_BEGIN)
    ]
