"""Plans run means by the kernel that eager calls have."""

from __future__ import annotations

import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

OP = "mean"


class Squeezed(nn.Module):
    """Squeeze-and-excite, and a pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(8, 16, 3, padding=1)
        self.down, self.up = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.inner(x))
        scale = self.up(F.silu(self.down(x.mean([2, 3], keepdim=True))))
        pooled: Tensor = self.pool(x * torch.sigmoid(scale))
        return self.head(pooled.flatten(1))


def test_plans_show_it() -> None:
    torch.manual_seed(0)
    model, x = Squeezed().eval(), torch.randn(2, 8, 14, 14)
    with torch.no_grad(), switching.accelerated(OP):
        eager = model(x)
        found = ptac.explain(model, x)
        parts = [part for part in found.parts if part.name == "mean.dim"]
        assert [part.way for part in parts] == ["kernel", "kernel"], str(found)
        assert [part.row for part in parts] == [switching.best_row(OP)] * 2
        ptac.optimize(model)
        model(x)
        hits = switching.hits(OP)
        torch.testing.assert_close(model(x), eager)
        assert hits.accelerated == 2, hits
    ptac.unoptimize(model)


def test_plans_have_it_write_into_their_arena() -> None:
    """Of these values only the means are neither torch's nor the result."""

    def function(x: Tensor) -> Tensor:
        return F.softplus(x.mean((2, 3)))

    x = torch.randn(2, 24, 14, 14)
    with torch.no_grad():
        assert ptac.explain(function, x).arena_bytes == 0
        with switching.accelerated(OP):
            found = ptac.explain(function, x)
    assert found.live_peak_bytes == 2 * 24 * 4
    assert found.arena_bytes >= found.live_peak_bytes
