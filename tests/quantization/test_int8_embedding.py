"""int8_embedding: what the entries take, give, count and leave to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import switching
import torch
from torch import Tensor

from pai_torchacc import _C

OP = "int8_embedding"
OFF = "switched off"

Entry = Callable[[Tensor, Tensor, Tensor], Tensor | None]


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    """The operator is on during a test."""
    with switching.accelerated("zero_grad"):
        _C.set_gate(OP, "")
        yield
        _C.set_gate(OP, OFF)


@pytest.fixture(params=["int8_embedding", "int8_embedding_kernel"])
def entry(request: pytest.FixtureRequest) -> Entry:
    return getattr(_C, request.param)


def table(n: int = 11, width: int = 37) -> tuple[Tensor, Tensor]:
    return torch.randint(-127, 128, (n, width), dtype=torch.int8), torch.rand(n)


INDICES = {
    "line": lambda: torch.tensor([3, 0, 10, 3]),
    "matrix": lambda: torch.randint(0, 11, (5, 7)),
    "scalar": lambda: torch.tensor(4),
    "gaps": lambda: torch.randint(0, 11, (5, 8))[:, 1:-1],
    "transposed": lambda: torch.randint(0, 11, (5, 8)).t(),
    "many": lambda: torch.randint(0, 11, (3000,)),
}


@pytest.mark.parametrize("row", switching.runnable_rows(OP))
@pytest.mark.parametrize("kind", INDICES)
def test_rows_of_the_table(entry: Entry, kind: str, row: str) -> None:
    q, scale = table()
    indices = INDICES[kind]()
    hits = switching.hits(OP)
    with switching.pins([OP], row):
        y = entry(indices, q, scale)
    assert y is not None
    assert torch.equal(y, (scale[:, None] * q.float())[indices])
    assert y.is_contiguous()
    assert hits.accelerated == 1, hits


def test_no_table_is_asked(entry: Entry) -> None:
    q, scale = table()
    y = entry(torch.arange(11), q, scale)
    assert y is not None
    assert torch.equal(y, scale[:, None] * q.float())


WRONG = {
    "beyond": (lambda q, s: (torch.tensor([0, 11]), q, s), "values"),
    "negative": (lambda q, s: (torch.tensor([0, -1]), q, s), "values"),
    "none": (lambda q, s: (torch.tensor([], dtype=torch.int64), q, s), "empty"),
    "no rows": (lambda q, s: (torch.tensor([0]), q[:0], s[:0]), "values"),
    "int32": (lambda q, s: (torch.tensor([1], dtype=torch.int32), q, s), "dtype"),
    "floats": (lambda q, s: (torch.tensor([1]), q.float(), s), "argument"),
    "scales": (lambda q, s: (torch.tensor([1]), q, s[1:]), "argument"),
    "one scale": (lambda q, s: (torch.tensor([1]), q, s.double()), "argument"),
    "columns": (lambda q, s: (torch.tensor([1]), q.t(), s), "argument"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_left_to_the_caller(entry: Entry, kind: str) -> None:
    make, reason = WRONG[kind]
    hits = switching.hits(OP)
    assert entry(*make(*table())) is None
    # What a module does not get it asks of the dispatcher, whose kernel counts why.
    is_counted = entry is _C.int8_embedding_kernel or reason == "values"
    counted = {reason: 1} if is_counted else {}
    assert (hits.accelerated, hits.forwarded) == (0, counted), hits


def test_switched_off(entry: Entry) -> None:
    _C.set_gate(OP, OFF)
    hits = switching.hits(OP)
    assert entry(torch.tensor([1]), *table()) is None
    assert hits.forwarded == {}


def test_wrong_number_of_arguments(entry: Entry) -> None:
    with pytest.raises(TypeError, match="indices, weight_int8, scale"):
        entry(torch.tensor([1]))  # type: ignore[call-arg]


def test_modes_see_it_through_the_dispatcher() -> None:
    q, scale = table()
    with torch.autocast("cpu"):
        assert _C.int8_embedding(torch.tensor([1]), q, scale) is None
        assert _C.int8_embedding_kernel(torch.tensor([1]), q, scale) is not None
