"""find_batch_size() and memory, in a process that has done nothing else.

What a trial holds beside storages is told to the MiB. In a process of many tests it
depends on what these left behind: free memory that allocators use again, and more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import native

TESTS = Path(__file__).with_name("memory_of_trials.py")


def test_memory_of_trials() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", str(TESTS)]
    said = native.run(command, env=env, timeout=1800)
    assert " passed" in said
    print(said)
