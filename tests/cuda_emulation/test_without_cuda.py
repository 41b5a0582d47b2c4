"""Without CUDA nothing is registered, and no driver is looked for."""

from __future__ import annotations

import json

import pytest
import torch
from switching import python

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason=f"torch {torch.__version__} has CUDA"
)

PROGRAM = """
import json, torch, pai_torchacc as ptac
from pai_torchacc import _C
ptac.enable()
print(json.dumps([
    [n for n in _C.override_installed() if n.startswith("cuda:")],
    ptac.status()["operator_fusion"]["cuda"],
    "libcuda" in open("/proc/self/maps").read(),
    "on CUDA none: this torch is built without CUDA" in ptac.report(),
]))
"""


def test_nothing_is_registered() -> None:
    registered, line, has_driver, is_reported = json.loads(python(PROGRAM))
    assert not registered
    assert line == "none: this torch is built without CUDA"
    assert not has_driver
    assert is_reported
