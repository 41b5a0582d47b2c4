"""Switches: what is on, with which options, and how to get from here to there.

The state of the package is one immutable :class:`Config`. Enabling, disabling and
leaving a ``with`` block all mean: go to that Config.

What a switch does is its row in the table of :mod:`pai_torchacc._features`.
"""

from pai_torchacc._switch.exclusion import Exclusion, exclude
from pai_torchacc._switch.handle import (
    Handle,
    disable,
    disabled,
    disabler,
    enable,
    enable_one,
)
from pai_torchacc._switch.state import (
    current,
    forget_numerics,
    furthest_numerics,
    is_active,
    locked,
    reason,
    status,
    when_asked,
)

__all__ = [
    "Exclusion",
    "Handle",
    "current",
    "disable",
    "disabled",
    "disabler",
    "enable",
    "enable_one",
    "exclude",
    "forget_numerics",
    "furthest_numerics",
    "is_active",
    "locked",
    "reason",
    "status",
    "when_asked",
]
