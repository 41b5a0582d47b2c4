"""Programs of modules that follow each other give what they give in stock."""

from __future__ import annotations

import os

import programs
import pytest
import torch
from programs import Writer, differences, run

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.fusion.sites import bytecode

N_PROGRAMS = 1500 if os.environ.get("PTAC_TEST_FULL") else 48
CHUNK = 6
KINDS = [(False, False), (False, True), (True, True), (True, False)]
"""In training mode or not, with gradients or not."""


def fused(source: str, is_training: bool, with_grad: bool) -> tuple[list[str], int]:
    """What is different with operator fusion on, and how often sites were hit."""
    stock = run(source, is_training, with_grad)
    with ptac.enable_operator_fusion():
        ours = run(source, is_training, with_grad)
        n_hits = sum(hits for _, _, _, _, hits, *_ in _C.sites_list())
    return differences(ours, stock), n_hits


@pytest.mark.parametrize("first", range(0, N_PROGRAMS, CHUNK))
def test_programs_leave_what_they_leave_in_stock(first: int) -> None:
    n_hits = 0
    for seed in range(first, first + CHUNK):
        source = Writer(seed).source()
        for is_training, with_grad in KINDS:
            wrong, n = fused(source, is_training, with_grad)
            assert not wrong, f"program {seed}: {wrong[0]}\n{source}"
            n_hits += n
    assert n_hits > programs.N_RUNS


@pytest.mark.parametrize(
    ("owner", "name", "says"),
    [(bytecode._Run, "_is_gone", True), (bytecode, "_in_place", True)],
)
def test_a_planner_that_errs_is_found_out(
    owner: object, name: str, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: says)
    found = (bool(fused(Writer(seed).source(), False, False)[0]) for seed in range(60))
    assert any(found)


def test_sites_are_forgotten_when_switched_off() -> None:
    source = "def forward(self, x, flag):\n    return self.block(x)"
    with ptac.enable_operator_fusion():
        run(source, False, False)
        assert _C.sites_list()
    assert not _C.sites_list()
    assert torch.is_grad_enabled()
