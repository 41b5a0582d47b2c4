"""Memory reuse and operator fusion together: the bits of fusion alone."""

from __future__ import annotations

import pytest
import reusing
import switching
import torch
from torch import Tensor

from pai_torchacc.bench.workloads import WORKLOADS

OPS = ("linear_act", "linear_act_backward", "cross_entropy", "cross_entropy_backward")


def steps(name: str) -> list[Tensor]:
    task = WORKLOADS[name].task()
    torch.manual_seed(1)
    losses = [task.train_step().detach() for _ in range(5)]
    return [*losses, *(p.detach() for p in task.model.parameters())]


@pytest.mark.parametrize("name", ["W1", "W3", "W4", "W4ge", "MLP64"])
@pytest.mark.parametrize("reuse_first", [False, True])
def test_fusion_goes_on(name: str, reuse_first: bool) -> None:
    with switching.accelerated():
        alone = {op: switching.hits(op) for op in OPS}
        expected = steps(name)
        alone_hits = {op: h.accelerated for op, h in alone.items()}
    assert any(alone_hits.values())

    def together() -> list[Tensor]:
        hits = {op: switching.hits(op) for op in OPS}
        found = steps(name)
        assert {op: h.accelerated for op, h in hits.items()} == alone_hits
        assert not any(h.forwarded.get("hooks") for h in hits.values())
        return found

    if reuse_first:
        with reusing.reused(), switching.accelerated():
            found = together()
    else:
        with switching.accelerated(), reusing.reused():
            found = together()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    assert reusing.current_bytes() == 0
