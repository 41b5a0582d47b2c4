"""numerics="fast" on CUDA: torch's setting for products by TF32, and verify()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from switching import FUSION

import pai_torchacc as ptac

MATMUL: Any = torch.backends.cuda.matmul


def setting() -> tuple[bool, str, str]:
    precision = torch.get_float32_matmul_precision()
    return MATMUL.allow_tf32, MATMUL.fp32_precision, precision


@pytest.fixture(autouse=True)
def untouched() -> None:
    assert setting() == (False, "none", "highest")


def test_products_are_by_tf32_while_the_switch_is_on() -> None:
    with ptac.enable(FUSION, numerics="fast"):
        assert setting() == (True, "tf32", "high")
        assert 'float32 products on CUDA: by TF32 (numerics="fast")' in ptac.report()
        with ptac.enable(FUSION, numerics="close"):
            assert setting() == (False, "none", "highest")
        assert setting() == (True, "tf32", "high")
    assert setting() == (False, "none", "highest")
    assert "TF32 (numerics" not in ptac.report()


def test_who_excludes_linear_layers_keeps_float32() -> None:
    with ptac.enable(FUSION, numerics="fast", exclude=["linear_act"]):
        assert setting() == (False, "none", "highest")


@pytest.mark.parametrize("wanted", [True, False])
def test_a_programs_own_setting_stays(wanted: bool) -> None:
    MATMUL.allow_tf32 = wanted
    try:
        before = setting()
        with ptac.enable(FUSION, numerics="fast"):
            assert setting() == before
        assert setting() == before
        MATMUL.allow_tf32 = False
        MATMUL.fp32_precision = "none"
        with ptac.enable(FUSION, numerics="fast"):
            MATMUL.allow_tf32 = wanted
            now = setting()
        if not wanted:  # what the program has set since is its own
            assert setting() == now
    finally:
        MATMUL.allow_tf32 = False
        MATMUL.fp32_precision = "none"


def test_a_setting_by_the_new_name_alone_stays() -> None:
    MATMUL.fp32_precision = "tf32"
    try:
        with ptac.enable(FUSION, numerics="fast"):
            assert MATMUL.fp32_precision == "tf32"
        assert MATMUL.fp32_precision == "tf32"
    finally:
        MATMUL.fp32_precision = "none"


@pytest.mark.parametrize("numerics", ["exact", "close", "fast"])
def test_verify(numerics: str) -> None:
    """The contract is kept on a device, stock runs as stock, and nothing is left."""
    seen = []
    linear = torch.nn.Linear(36, 16)
    linear.register_forward_hook(lambda *_: seen.append(MATMUL.allow_tf32))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(), linear,
        torch.nn.LayerNorm(16), torch.nn.LogSoftmax(-1),
    ).cuda()  # fmt: skip
    with ptac.enable(FUSION, numerics=numerics):
        found = ptac.verify(model, torch.randn(6, 1, 8, 8).cuda())
    assert found, str(found)
    assert found.accelerated >= 2
    assert seen[0] is False  # stock's run
    assert seen[1] is (numerics == "fast")
    assert setting() == (False, "none", "highest")
