"""What a recording shows that must not be replayed, and where it stands."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from planning import close, counts, planned_of, reasons
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.graph.refusals import CannotPlan

HELD = torch.zeros(5)


@dataclasses.dataclass
class Box:
    tensor: Tensor


def _writes_argument(x: Tensor) -> Tensor:
    return x.add_(1)


def _writes_view_of_argument(x: Tensor) -> Tensor:
    x[0] = 0
    return x + 1


def _writes_held(x: Tensor) -> Tensor:
    HELD.add_(1)
    return x + 1


def _writes_out(x: Tensor) -> Tensor:
    return torch.add(x, 1, out=torch.empty(5))


FORWARDS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "branch": (lambda x: x + 1 if x.sum() > 0 else x - 1, "a tensor's number"),
    "item": (lambda x: x * x.max().item(), "a tensor's number"),
    "item of held": (lambda x: x * HELD.max().item(), "a tensor's number"),
    "item of both": (
        lambda x: x * (torch.arange(5) + x).max().item(),
        "a tensor's number",
    ),
    "nonzero": (lambda x: x.nonzero().float(), "depends on the data"),
    "mask": (lambda x: x[x > 0], "depends on the data"),
    "writes argument": (_writes_argument, "writes to an argument"),
    "writes view of argument": (_writes_view_of_argument, "writes to an argument"),
    "writes held": (_writes_held, "writes to an argument"),
    "out": (_writes_out, "writes to its arguments"),
    "view of argument": (lambda x: x.view(5, 1), "a view of an argument"),
    "constant": (lambda x: (x + 1, torch.tensor(2.0)), "a constant is returned"),
    "nothing": (lambda x: x, "no operator"),
    "complex": (lambda x: torch.view_as_real(x + 1j), "another dtype"),
    "numpy": (lambda x: torch.from_numpy(x.numpy() * 2) + x, "read in Python"),
    "list": (lambda x: x + sum(x.tolist()), "read in Python"),
    "box": (lambda x: Box(x + 1), "a Box is returned"),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_what_must_not_be_replayed(name: str) -> None:
    function, reason = FORWARDS[name]
    optimized = ptac.optimize(function, on_refusal="ignore")
    for i in range(3):
        x = torch.arange(-1.0, 4) * (1 if i % 2 else -1)
        ours, expected = optimized(x.clone()), function(x.clone())
        if isinstance(expected, Box):
            ours, expected = ours.tensor, expected.tensor
        close(ours, expected)
    assert counts(optimized) == (0, 0)
    assert any(reason in text for text in reasons(optimized)), reasons(optimized)


def test_file_and_line_are_told() -> None:
    @ptac.optimize
    def function(x: Tensor) -> Tensor:
        y = x + 1
        return y if y.sum() > 0 else -y

    line = function.__wrapped__.__code__.co_firstlineno + 3
    with pytest.warns(RuntimeWarning, match=rf"{__file__}:{line}: a tensor's number"):
        function(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        function(torch.ones(3))


def test_refusals_may_raise() -> None:
    optimized = ptac.optimize(lambda x: x * x.sum().item(), on_refusal="raise")
    with pytest.raises(CannotPlan, match="a tensor's number"):
        optimized(torch.ones(3))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        return self.layer(x)


def test_attributes_that_forward_sets() -> None:
    module = ptac.optimize(Counting().eval(), on_refusal="ignore")
    with torch.no_grad():
        for _ in range(4):
            module(torch.ones(2, 3))
    assert module.n_calls == 4
    assert reasons(module) == ["forward changes the attribute n_calls"]


def test_norms_in_training() -> None:
    module = ptac.optimize(nn.BatchNorm1d(3, momentum=0.5), on_refusal="ignore")
    other = nn.BatchNorm1d(3, momentum=0.5)
    x = torch.randn(4, 3)
    with torch.no_grad():
        for _ in range(3):
            close(module(x), other(x))
    close(module.running_mean, other.running_mean)
    assert module.num_batches_tracked == 3
    assert counts(module) == (0, 0)


def test_arguments_that_share_memory() -> None:
    optimized = ptac.optimize(lambda a, b: a + b, on_refusal="ignore")
    x = torch.randn(2, 4)
    for _ in range(2):
        close(optimized(x, x), 2 * x)
        close(optimized(x[0], x[1]), x[0] + x[1])
        close(optimized(x[0].clone(), x[1].clone()), x[0] + x[1])
    assert counts(optimized)[0] == 1
    assert "two arguments share memory" in reasons(optimized)


def test_an_exception_in_a_recording_is_the_programs() -> None:
    fails = True

    @ptac.optimize(on_refusal="raise")
    def function(x: Tensor) -> Tensor:
        y = x * 2
        if fails:
            raise KeyError("mine")
        return y

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            function(torch.ones(3))
    fails = False
    for _ in range(2):
        close(function(torch.ones(3)), torch.full((3,), 2.0))
    assert counts(function) == (1, 1)


def test_random_numbers_are_drawn_as_ever() -> None:
    def function(x: Tensor) -> Tensor:
        torch.rand(3)  # for nothing, and yet the next numbers depend on it
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(4)

    optimized = ptac.optimize(function, on_refusal="raise")
    x = torch.ones(4)
    for seed in range(4):
        torch.manual_seed(seed)
        ours = optimized(x), torch.rand(1)
        torch.manual_seed(seed)
        close(ours, (function(x), torch.rand(1)))
    assert counts(optimized) == (1, 3)


def test_the_report_tells() -> None:
    optimized = ptac.optimize(lambda x: x * x.sum().item(), on_refusal="ignore")
    optimized(torch.ones(3))
    name = planned_of(optimized).name
    document = ptac.report("json")
    assert "a tensor's number is read in Python" in str(document)
    assert f"{name}: 0 calls by 0 plans, 1 eager" in ptac.report()


def test_the_report_counts_anew() -> None:
    optimized = ptac.optimize(lambda x: torch.relu(x + 1), on_refusal="raise")
    refused = ptac.optimize(lambda x: x * x.sum().item(), on_refusal="ignore")
    for _ in range(3):
        optimized(torch.ones(3))
        refused(torch.ones(3))
    assert planned_of(refused).counts()["reasons"] == {
        "a tensor's number is read in Python": 3
    }
    ptac.report(reset=True)
    optimized(torch.ones(3))
    refused(torch.ones(3))
    assert counts(optimized) == (1, 1)
    assert planned_of(refused).counts()["reasons"] == {
        "a tensor's number is read in Python": 1
    }


def test_a_fault_of_ours_is_told_and_the_call_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr("pai_torchacc.graph.planned.lower", fails)
    optimized = ptac.optimize(lambda x: x + 1, on_refusal="warn")
    with pytest.warns(RuntimeWarning, match="no plan could be made.*planted"):
        close(optimized(torch.ones(3)), torch.full((3,), 2.0))
    close(optimized(torch.ones(3)), torch.full((3,), 2.0))
    assert counts(optimized) == (0, 0)


@pytest.mark.parametrize("draw", [torch.rand, torch.empty], ids=["random", "new"])
def test_numbers_that_may_be_others_are_not_read(
    draw: Callable[[int], Tensor],
) -> None:
    optimized = ptac.optimize(lambda x: x * draw(3).max().item(), on_refusal="ignore")
    for _ in range(3):
        optimized(torch.ones(5))
    assert counts(optimized) == (0, 0)
    assert "a tensor's number is read in Python" in reasons(optimized)


def _counted(x: Tensor) -> Tensor:
    """As transformers look whether positions are those of one sequence."""
    positions = torch.arange(x.shape[-1]).unsqueeze(0)
    before = positions[:, :1] - 1
    steps = torch.diff(positions, prepend=before, dim=-1)
    if ((steps != 1).cumsum(-1)[:, -1] == 0).all():
        x = x + steps
    scale = torch.tensor([2.0, 3.0]).sum().item()
    filled = torch.zeros(3)
    filled[1] = 4
    return x * scale + filled.max().item()


@pytest.mark.parametrize("inference", [False, True])
def test_numbers_that_depend_on_nothing_are_read_once(inference: bool) -> None:
    optimized = ptac.optimize(_counted, on_refusal="raise")
    with torch.inference_mode(inference):
        for n in (3, 5, 3, 5):
            x = torch.randn(2, n)
            close(optimized(x), _counted(x))
    assert counts(optimized) == (2, 2)
