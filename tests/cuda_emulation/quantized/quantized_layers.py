"""Models of which layers are int8, for tests on the emulated CUDA devices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import emulation
import internals
import pytest
import torch
from torch import Tensor, nn

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


def brought(tensor: Tensor, device: str, cls: Any, requires_grad: bool) -> Tensor:
    moved = tensor.to(device)
    made: Tensor = cls(moved) if cls is nn.Parameter else moved
    return made.requires_grad_(requires_grad)


@pytest.fixture
def by_way_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are copied and pickled so: these devices have no storage of Python's."""

    def parts(x: Tensor) -> tuple[Any, ...]:
        return x.detach().cpu(), str(x.device), type(x), x.requires_grad

    for cls in (Tensor, nn.Parameter):
        reduce, deepcopy = cls.__reduce_ex__, cls.__deepcopy__

        def reduced(x: Any, protocol: Any, reduce: Any = reduce) -> Any:
            return (brought, parts(x)) if x.is_cuda else reduce(x, protocol)

        def copied(x: Any, memo: Any, deepcopy: Any = deepcopy) -> Any:
            if not x.is_cuda:
                return deepcopy(x, memo)
            return memo.setdefault(id(x), brought(*parts(x)))

        monkeypatch.setattr(cls, "__reduce_ex__", reduced)
        monkeypatch.setattr(cls, "__deepcopy__", copied)


VIEWS: dict[str, Callable[[int], Tensor]] = {
    "rows": lambda k: torch.randn(21, k),
    "three dimensions": lambda k: torch.randn(3, 5, k),
    "rows at a distance": lambda k: torch.randn(9, k + 24)[:, 3 : k + 3],
    "folded": lambda k: torch.randn(2, 5, k + 24)[..., :k],
    "transposed": lambda k: torch.randn(k, 17).t(),
    "at no single distance": lambda k: torch.randn(4, 6, k).transpose(0, 1),
    "expanded": lambda k: torch.randn(1, k).expand(7, k),
}
"""Inputs of so many columns."""


def lying_so(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Brought to the device as it lies, with the memory that it is a view of."""
    base = x if x._base is None else x._base
    return base.to("cuda", dtype).as_strided(x.size(), x.stride(), x.storage_offset())


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
