"""Models of which layers are int8, for tests on the emulated CUDA devices."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import emulation
import internals
import pytest
import torch
from torch import nn

import pai_torchacc as ptac
from benchmarks.extension import function

INT8 = "int8_linear"

_M = TypeVar("_M", bound=nn.Module)


@pytest.fixture(autouse=True)
def nothing_planned() -> Iterator[None]:
    """Each test begins with no products planned."""
    function("ptac_lt_plan_clear", None)()
    yield
    ptac.disable()


@pytest.fixture
def switched_on() -> Iterator[Any]:
    with ptac.enable_model_quantization() as handle:
        assert handle, handle.reason
        yield handle
    internals.reset_quarantine()


def quantized(model: _M, **options: Any) -> Any:
    """A copy of the model in int8, in eval mode."""
    options = {"method": "int8"} | options
    return ptac.quantize_model(copy.deepcopy(model).eval(), **options)


def kernels(since: int) -> list[str]:
    """Ours that were launched; a GPU's products have names of their own."""
    names = [launch.split()[0] for launch in emulation.launches()[since:]]
    return [name for name in names if not name.startswith("product_")]


def mlp(
    dtype: torch.dtype = torch.float32, sizes: tuple[int, int, int] = (40, 50, 30)
) -> nn.Sequential:
    torch.default_generator.manual_seed(0)
    n_in, hidden, n_out = sizes
    net = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, n_out))
    return net.to(dtype).eval()
