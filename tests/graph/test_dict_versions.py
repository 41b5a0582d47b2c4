"""Numbers of dictionaries are used where they tell of every change."""

from __future__ import annotations

import sys

import pytest
import torch
from planning import by_plan, close, warm
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.graph import dict_versions


def test_they_are_used_up_to_3_12() -> None:
    ptac.enable_graph_optimization()
    assert dict_versions.are_told(_C) == (sys.version_info[:2] <= (3, 12))


@pytest.mark.parametrize("are_used", [False, True])
def test_guards_do_with_and_without_them(are_used: bool) -> None:
    if are_used and not dict_versions.are_told(_C):
        pytest.skip("this Python does not number states of dictionaries")
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    x = torch.randn(3, 4)
    warm(module, x)
    _C.dict_words_are_versions(are_used)
    for _ in range(300):  # until stores of attributes have bytecode of their own
        by_plan(module, lambda: module(x))
        module[1].training = True
        module[1].training = False
        module[0].in_features = 4
    by_plan(module, lambda: module(x))
    module[1].training = True
    with torch.no_grad():
        torch.manual_seed(0)
        ours = module(x)
        torch.manual_seed(0)
        close(ours, module._call_impl(x))


def test_what_is_no_dictionary() -> None:
    with pytest.raises(TypeError, match="a dictionary is expected"):
        _C.dict_word([])
