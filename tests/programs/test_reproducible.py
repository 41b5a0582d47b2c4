"""The same script run twice in fresh processes gives the same bits."""

from __future__ import annotations

import pytest
import switching

from pai_torchacc import _C

TRAIN = """
import hashlib, sys, torch, pai_torchacc as ptac, switching
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
numerics, n_threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(n_threads)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 128), nn.ReLU(),
    nn.Linear(128, 10))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
with switching.accelerated(numerics=numerics):
    for _ in range(8):
        opt.zero_grad()
        F.cross_entropy(net(x), y, label_smoothing=0.1).backward()
        opt.step()
    assert switching._C.counters("adamw_step")[0] >= 8
    assert switching._C.counters("max_pool2d_backward")[0] == 8
digest = hashlib.sha256()
for p in [*net.parameters(), *(v for s in opt.state.values() for v in s.values())]:
    digest.update(p.detach().numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.parametrize("n_threads", ["1", "2"])
@pytest.mark.parametrize("numerics", ["exact", "close"])
def test_same_bits_twice(numerics: str, n_threads: str) -> None:
    first = switching.python(TRAIN, numerics, n_threads)
    assert len(first) == 65
    assert switching.python(TRAIN, numerics, n_threads) == first


def test_exact_is_stock() -> None:
    """At level exact a whole training gives stock's bits."""
    ours = switching.python(TRAIN, "exact", "2")
    stock = TRAIN.replace("switching.accelerated(numerics=numerics)", "ptac.disabled()")
    lines = [line for line in stock.splitlines() if "counters" not in line]
    assert switching.python("\n".join(lines), "exact", "2") == ours


@pytest.mark.long
def test_calibration_measures_one_row_at_a_time() -> None:
    """Each case finds its row taken, gradients without those of their forward too."""
    from pai_torchacc.bench import calibrate, cases

    can_run = {op: any(row[2] for row in rows) for op, _, rows in _C.operators()}
    ops = {case.op for case in cases.cases() if can_run[case.op]}
    assert {"max_pool2d", "max_pool2d_backward"} <= ops
    for op in sorted(ops):
        chosen = calibrate.Chosen(frozenset([op]))
        first = next(calibrate.measure(None, chosen, blocks=1, block_s=0))
        assert first.op == op
        assert first.stock_us > 0  # a stall of milliseconds makes ratios round to 0
