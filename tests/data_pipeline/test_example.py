"""examples/data_pipeline.py, by stock and with every switch that it turns on."""

from __future__ import annotations

import os
import re
import sys

import native

SCRIPT = native.ROOT / "examples" / "data_pipeline.py"


def output(*arguments: str) -> str:
    environment = os.environ | {"PTAC_NUMERICS": "exact"}
    return native.run([sys.executable, str(SCRIPT), *arguments], env=environment)


def test_the_same_training_that_waits_less() -> None:
    plain, ours = output("--stock"), output()
    trained = re.findall(r"^(.* \d: [\d.]+, [\d.]+%)", plain, re.MULTILINE)
    assert len(trained) == 6
    assert trained == re.findall(r"^(.* \d: [\d.]+, [\d.]+%)", ours, re.MULTILINE)
    for name in ("TensorDataset", "Digits"):
        assert f"{name}: 87 batches, 87 at once" in ours
