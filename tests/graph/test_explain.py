"""What ``ptac.explain`` says of a plan."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from planning import counts
from switching import accelerated
from torch import Tensor, nn

import pai_torchacc as ptac


def net() -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*body, nn.Softplus(), nn.Flatten(), nn.Linear(256, 4)).eval()


def test_what_is_merged_and_what_is_torchs() -> None:
    model, x = net(), torch.randn(2, 8, 4, 4)
    with accelerated():
        found = ptac.explain(model, x)
    ways = {part.name: part.way for part in found.parts}
    assert ways["convolution + native_batch_norm + relu"] == "merged"
    assert ways["softplus"] == "torch"
    assert all(part.us > 0 for part in found.parts)
    assert found.eager_us > 0 and found.planned_us > 0
    assert 0 < found.live_peak_bytes <= found.arena_bytes <= found.values_bytes
    text = str(found)
    assert f"plan of {len(found.parts)} steps, {found.gain:.2f}x" in text
    assert json.loads(json.dumps(found.as_dict()))["name"] == "Sequential"
    assert re.search(r"\(no kernel of ours has it, .+\.py:\d+\)", text)
    assert model._compiled_call_impl is None


def test_the_picture(tmp_path: Path) -> None:
    found = ptac.explain(net(), torch.randn(2, 8, 4, 4))
    assert found.picture.startswith("digraph plan {")
    assert "input0 -> step0;" in found.picture
    last = len(found.parts) - 1
    assert f"step{last} -> result0;" in found.picture
    if shutil.which("dot") is None:
        with pytest.raises(RuntimeError, match="graphviz is not installed"):
            found.save_svg(tmp_path / "plan.svg")
    else:
        found.save_svg(tmp_path / "plan.svg")
        assert "<svg" in (tmp_path / "plan.svg").read_text()


def test_what_is_not_planned() -> None:
    def branches(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x

    found = ptac.explain(branches, torch.ones(3))
    assert not found.parts
    assert "a tensor's number is read in Python" in str(found)
    with pytest.raises(RuntimeError, match="there is no plan"):
        found.save_svg("nowhere.svg")


def test_what_is_optimized_already() -> None:
    model, x = ptac.optimize(net()), torch.randn(2, 8, 4, 4)
    with torch.no_grad():
        model(x)
    assert ptac.explain(model, x).parts
    assert counts(model) == (1, 0)
    function = ptac.optimize(lambda x: torch.relu(x + 1))
    assert ptac.explain(function, x).parts
    with pytest.raises(TypeError):
        ptac.explain(lambda x: x)


def test_a_training_step() -> None:
    model = net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with accelerated():
        found = ptac.explain(step, torch.randn(2, 8, 4, 4))
    names = [part.name for part in found.parts]
    assert "SGD.step" in names
    assert "gradients" in names
    assert found.planned_us > 0
