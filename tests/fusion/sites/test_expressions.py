"""Plain expressions leave the bits that they leave call by call."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import expressions
import pytest
import torch
import torch.nn.functional as F
from expressions import Writer, differences, run
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.fusion.sites import bytecode

N_PROGRAMS = 3000 if os.environ.get("PTAC_TEST_FULL") else 80
CHUNK = 20


def n_hits() -> int:
    return sum(hits for _, _, _, _, hits, *_ in _C.sites_list())


def wrong(source: str, with_grad: bool, n_threads: int = 1) -> tuple[list[str], int]:
    """What is different from calls one by one, and how many ran as one."""
    with ptac.enable_operator_fusion():
        _C.sites_open(False)
        expected = run(source, with_grad, n_threads)
        _C.sites_open(True)
        ours = run(source, with_grad, n_threads)
        hits = n_hits()
    return differences(ours, expected), hits


@pytest.mark.parametrize("first", range(0, N_PROGRAMS, CHUNK))
def test_programs_leave_the_same_bits(first: int) -> None:
    total = 0
    for seed in range(first, first + CHUNK):
        source = Writer(seed).source()
        for with_grad in (False, True):
            found, hits = wrong(source, with_grad)
            assert not found, f"program {seed}: {found[0]}\n{source}"
            total += hits
    assert total > expressions.N_RUNS * CHUNK / 2


def test_threads_run_one_function() -> None:
    source = "def program(x, y, k, flag, held):\n    a = x @ y\n" + "\n".join(
        ["    a = torch.relu(a @ y + 0.5)", "    a = a - 2", "    a = F.relu(a)"] * 20
    )
    found, hits = wrong(source + "\n    return a", False, n_threads=4)
    assert not found
    assert hits > 20


def test_a_planner_that_errs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode._Run, "_is_gone", lambda _: True)
    assert any(wrong(Writer(seed).source(), False)[0] for seed in range(60))


def article(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.matmul(x, y.T) + 0.5)


def assigned(x: Tensor, y: Tensor) -> Tensor:
    z = x @ y.T
    z = z * 2
    z = F.relu(z)
    return z - 1


def to_module(x: Tensor, y: Tensor) -> Tensor:
    return ACT(x + y)


def added(x: Tensor, y: Tensor) -> Tensor:
    return ACT(x + y + 0.5)


def added_twice(x: Tensor, y: Tensor) -> Tensor:
    return ACT(x + y + 0.5 + 0.5)


ACT = nn.ReLU()
PATTERNS = {
    article: "matmul, + 0.5, ReLU",
    assigned: "__matmul__, * 2, ReLU, - 1",
    to_module: "__add__, ReLU",
}


@pytest.mark.parametrize("program", PATTERNS)
@pytest.mark.parametrize("n", [1, 4, 70, 300])
def test_what_runs_as_one(program: Callable[[Tensor, Tensor], Tensor], n: int) -> None:
    x, y = torch.randn(n, n), torch.randn(n, n)
    expected = program(x, y)
    with torch.no_grad(), ptac.enable_operator_fusion():
        ptac.report(reset=True)
        got = [program(x, y) for _ in range(8)]
        text = ptac.report()
        (site,) = json.loads(ptac.report("json"))["sites"]
    assert (site["pattern"], site["hits"]) == (PATTERNS[program], 8)
    assert site["estimated_ms_saved"] > 0
    assert PATTERNS[program] in text
    for y in got:  # products of few elements are of level close
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", [4, 70, 300])
def test_every_step_of_a_place_is_estimated(n: int) -> None:
    def saved_ms(program: Callable[[Tensor, Tensor], Tensor]) -> float:
        ptac.report(reset=True)
        for _ in range(8):
            program(x, x)
        (site,) = json.loads(ptac.report("json"))["sites"]
        assert site["hits"] == 8
        return float(site["estimated_ms_saved"])

    x = torch.randn(n, n)
    with torch.no_grad(), ptac.enable_operator_fusion():
        saved = [saved_ms(to_module), saved_ms(added), saved_ms(added_twice)]
    of_number = saved[1] - saved[0]
    assert min(saved[0], of_number) > 0
    assert saved[2] == pytest.approx(saved[1] + of_number)


def all_steps(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(0.1 + 3 * (x + y) - 0.3) / 7


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n", [3, 128, 300, 1000])
def test_the_bits_are_stocks(n: int, n_threads: int) -> None:
    """Of sums; beyond 16384 elements stock itself does each step otherwise."""
    x, y = torch.randn(2, n, n)
    x[0, 0], x[0, 1], y[0, 1], x[0, 2] = float("nan"), -0.0, -0.0, float("inf")
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        with torch.no_grad():
            expected = all_steps(x, y)
            with ptac.enable_operator_fusion():
                got = all_steps(x, y)
                assert n_hits() == 1
    finally:
        torch.set_num_threads(before)
    assert not differences([[got]], [[expected]])
    assert torch.equal(got.isnan(), expected.isnan())


def test_nothing_runs_as_one_with_a_gradient() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    with ptac.enable_operator_fusion():
        got = article(x, x)
        assert n_hits() == 0
    assert torch.equal(got, article(x, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_go_one_by_one(dtype: torch.dtype) -> None:
    x = torch.arange(-8, 8).view(4, 4).to(dtype)
    expected = article(x, x)
    with torch.no_grad(), ptac.enable_operator_fusion():
        assert torch.equal(article(x, x), expected)
        assert n_hits() == 0


def test_special_numbers() -> None:
    x = torch.tensor([[float("nan"), float("inf")], [-float("inf"), -0.0]])
    expected = to_module(x, x)
    with torch.no_grad(), ptac.enable_operator_fusion():
        got = to_module(x, x)
        assert n_hits() == 1
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit(), expected.signbit())


def test_operators_of_the_program_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 4)
    add = torch.Tensor.__add__
    with torch.no_grad(), ptac.enable_operator_fusion():
        article(x, x)
        monkeypatch.setattr(torch.Tensor, "__add__", lambda a, b: add(add(a, b), 1))
        got = article(x, x)
    torch.testing.assert_close(got, torch.relu(torch.matmul(x, x.T) + 0.5))


def test_functions_of_the_program_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 4)
    with torch.no_grad(), ptac.enable_operator_fusion():
        article(x, x)
        monkeypatch.setattr(torch, "relu", torch.sigmoid)
        got = article(x, x)
    torch.testing.assert_close(got, torch.sigmoid(torch.matmul(x, x.T) + 0.5))
