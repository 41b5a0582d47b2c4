"""Chains in nn.Sequential that begin with convolutions other than 3x3 and 5x5."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
from chains import called, norm
from torch import Tensor, nn

IMPLICIT = next(
    row for row in switching.runnable_rows("conv2d") if row.startswith("implicit")
)
LAYERS: dict[str, Callable[[], nn.Conv2d]] = {
    "depthwise": lambda: nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False),
    "strided depthwise": lambda: nn.Conv2d(24, 24, 5, 2, padding=2, groups=24),
    "1x1": lambda: nn.Conv2d(24, 40, 1, bias=False),
    "stem": lambda: nn.Conv2d(24, 16, 3, 2, padding=1),
    "grouped": lambda: nn.Conv2d(24, 48, 3, padding=1, groups=3, bias=False),
    "dilated": lambda: nn.Conv2d(24, 8, 3, padding=2, dilation=2),
}
"""Convolutions of every other geometry."""

OF_LAYERS = "conv2d", "depthwise_conv2d", "batch_norm_act"


@contextlib.contextmanager
def serving_layers() -> Iterator[None]:
    with switching.pins(["conv2d"], IMPLICIT), switching.accelerated(*OF_LAYERS):
        yield


@lru_cache(2)
def layer_case(name: str, act: type[nn.Module], layout: Any) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        conv = LAYERS[name]()
        model = nn.Sequential(conv, norm(conv.out_channels), act()).to(dtype)
        x = contract.draw(2, 24, 17, 19, dtype=dtype).to(memory_format=layout)
        with torch.no_grad():
            return {"y": model(x)}

    return case


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.SiLU])
@pytest.mark.parametrize("name", LAYERS)
def test_other_geometries(name: str, act: type[nn.Module]) -> None:
    op = "depthwise_conv2d" if "depthwise" in name else "conv2d"
    with serving_layers():
        for layout in (torch.contiguous_format, torch.channels_last):
            hits, norms = switching.hits(op), switching.hits("batch_norm_act")
            case = layer_case(name, act, layout)
            contract.hold(case)
            if layout == torch.contiguous_format or op != "conv2d":
                assert hits.accelerated >= 1
            if layout == torch.contiguous_format:
                files = called(lambda case=case: case(torch.float32))
                folds = act is not nn.SiLU
                assert files == (set() if folds else {"conv.py"})
                assert (norms.accelerated == 0) == folds


@torch.no_grad()
def test_a_convolution_that_is_not_ours_costs_no_look_at_its_followers() -> None:
    model = nn.Sequential(nn.Conv2d(24, 24, 3), nn.ReLU6()).double()
    x = torch.randn(2, 24, 9, 9, dtype=torch.float64)
    expected = model(x)
    with serving_layers():
        hits = switching.hits("conv2d")
        assert called(lambda: model(x)) == {"conv.py", "activation.py"}
        assert hits.forwarded == {"dtype": 1}
        assert torch.equal(model(x), expected)
