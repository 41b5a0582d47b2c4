"""A plug-in that brings the emulated devices, so that emulation.py beside it has some.

With it what takes the emulation's place on a GPU is itself tested without one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parents[2] / "cuda_emulation" / "emulation.py"
_SPEC = importlib.util.spec_from_file_location("emulated_devices", _PATH)
assert _SPEC
assert _SPEC.loader
devices = importlib.util.module_from_spec(_SPEC)
sys.modules["emulated_devices"] = devices
_SPEC.loader.exec_module(devices)
devices.load()


def pytest_configure() -> None:
    """Units have what the emulated driver takes before any other is compiled."""
    devices.give_machine_code()
