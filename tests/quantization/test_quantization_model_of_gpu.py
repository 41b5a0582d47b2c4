"""The model of GPUs that decides there: what the document says that it says."""

from __future__ import annotations

import itertools
import re

import native
import pytest
import torch

from pai_torchacc.quantization import on_cuda, record
from pai_torchacc.quantization.quantizer import FP8, INT8, Format

ROWS = 256, 1024, 4096
COUNTED = {"cuda_m256": "256 rows", "cuda_m1024": "1,024 rows"}
COST = {INT8: on_cuda._int8_s, FP8: on_cuda._fp8_s}
FLOATS = [torch.bfloat16, torch.float32]


def told() -> list[tuple[Format, int, int, str, str]]:
    """Format, outputs, inputs, from where on, times as fast: rows of both tables."""
    page = (native.ROOT / "docs" / "quantization.md").read_text()
    int8, fp8 = page.split("\n### fp8\n")
    row = re.compile(r"^\| (\d+) x (\d+) \| ([^|]+) \| ([\d., ]+) \|$", re.MULTILINE)
    return [
        (of, int(found[1]), int(found[2]), found[3], found[4])
        for of, part in ((INT8, int8), (FP8, fp8))
        for found in row.finditer(part)
    ]


def times_as_fast(of: Format, m: int, n: int, k: int, dtype: torch.dtype) -> float:
    size, rate = on_cuda._float_rate(dtype)
    return on_cuda._float_s(m, n, k, size, rate) / COST[of](m, n, k, size)


def test_the_document_has_tables_of_both() -> None:
    assert {of for of, *_ in told()} == {INT8, FP8}


@pytest.mark.parametrize("of, n, k, where, times", told())
def test_the_document_tells_what_the_model_says(
    of: Format, n: int, k: int, where: str, times: str
) -> None:
    computed = [times_as_fast(of, m, n, k, torch.bfloat16) for m in ROWS]
    assert times == ", ".join(f"{one:.2f}" for one in computed)
    begins = [
        rows
        for kind, rows in COUNTED.items()
        if on_cuda.is_faster(kind, n, k, torch.bfloat16, of)
    ]
    assert where.partition(":")[0] == (begins[0] if begins else "never")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("of", COST, ids=lambda of: of.name)
def test_the_ends_of_a_kind_speak_for_all_between(
    of: Format, dtype: torch.dtype
) -> None:
    sizes = [64, 512, 1000, 2048, 4096, 11008]
    n_faster = 0
    for kind, n, k in itertools.product(COUNTED, sizes, sizes):
        if on_cuda.is_faster(kind, n, k, dtype, of):
            rows = record.ROWS[kind]
            counts = range(rows.least, int(min(rows.most, 1 << 16)) + 1, 97)
            gains = [times_as_fast(of, m, n, k, dtype) for m in counts]
            assert min(gains) >= 1.05, (kind, n, k)
            n_faster += 1
    assert n_faster
