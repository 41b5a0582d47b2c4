"""examples/batch_size.py: the optimizer's steps are stock's, whatever the batch."""

from __future__ import annotations

import re
from pathlib import Path

import native
import pytest
import switching

SCRIPT = str(native.ROOT / "examples" / "batch_size.py")


def run(*options: str) -> str:
    done = switching.forked([SCRIPT, "--steps", "3", *options])
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def losses(text: str) -> list[float]:
    [found] = re.findall(r"^loss ([\d.]+) -> ([\d.]+)$", text, re.M)
    return [float(loss) for loss in found]


def test_example(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "plot.png"
    plain, ours = run("--stock"), run("--plot", str(file))
    print(ours)
    [(batch, accumulation)] = re.findall(
        r"^batch (\d+), accumulation (\d+)$", ours, re.M
    )
    assert int(batch) * int(accumulation) == 256
    assert "batch 256, accumulation 1" in plain and "samples/s" not in plain
    # Printed to four places: sums in another order do not show.
    assert losses(ours) == pytest.approx(losses(plain), abs=2e-4)
    assert file.read_bytes().startswith(b"\x89PNG")
