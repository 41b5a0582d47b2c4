"""Calls of modules and functions by graphs; when they are not; what is freed."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from planning import planned_of
from stepping import mlp
from strict_device import StrictDevice
from torch import Tensor, nn
from twins import AHEAD, captured, graphs, reasons, replays

import pai_torchacc as ptac
from pai_torchacc.graph.cuda import site


def test_a_module_is_replayed(device: StrictDevice) -> None:
    model = mlp().eval()
    twin = copy.deepcopy(model)
    ptac.optimize(model, on_refusal="raise")
    kept = []
    with torch.no_grad():
        for i in range(10):
            x = torch.randn(4, 12)
            y = model(x)
            kept.append((y, y.clone()))
            assert torch.equal(y, twin(x))
            assert replays(model) == max(0, i + 1 - AHEAD)
    assert device.n_captures == graphs(model) == 1
    assert device.n_replays == 10 - AHEAD
    for y, then in kept:  # results are new tensors
        assert torch.equal(y, then)


def test_calls_aside_are_handed_over(device: StrictDevice) -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="raise")
    with torch.no_grad():
        for _ in range(AHEAD):
            model(torch.randn(4, 12))
    assert device.n_aside == AHEAD - 1 == device.n_handed_over


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).chunk(2),
        lambda x: (x, x + 1),
        lambda x: {"a": x * 2, "b": [x.t() + 1, None, "text"]},
        lambda x: (x * 2)[:, ::2],
        lambda x: (x + 1).t(),
        lambda x: [(x + 1).view(-1)] * 2,
        lambda x: x.new_empty(0),
    ],
)
def test_results(function: Any) -> None:
    x = torch.randn(4, 6)
    planned, ours = captured(function, x)
    theirs = function(x)
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(ours), leaves(theirs), strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        else:
            assert one == other
    assert graphs(planned) == 1


def test_results_that_share_memory_do_so_again() -> None:
    _, (one, other) = captured(lambda x: (x + 1).expand(2, 3).chunk(2), torch.ones(3))
    one.data[0] = 7.0
    assert other.flatten()[0] == 7.0


def test_an_argument_that_is_returned_is_the_callers() -> None:
    function, _ = captured(lambda x: (x, x * 2), torch.ones(3))
    x = torch.zeros(3)
    assert function(x)[0] is x


def test_a_parameter_that_is_returned_is_itself() -> None:
    model = nn.Linear(3, 3)
    ptac.optimize(model, on_refusal="raise")
    model.forward = lambda x: (model.bias, model.weight @ x)  # type: ignore
    ptac.unoptimize(model)
    ptac.optimize(model, on_refusal="raise")
    with torch.no_grad():
        for _ in range(AHEAD + 2):
            bias, _ = model(torch.ones(3))
    assert replays(model) == 2
    assert bias is model.bias


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 6).t(),
        lambda: torch.randn(6).expand(4, 6),
        lambda: torch.randn(4, 12)[:, ::2],
        lambda: torch.randn(()),
        lambda: torch.empty(0, 3),
    ],
)
def test_arguments_that_lie_otherwise(make: Any) -> None:
    function, _ = captured(lambda x: x * 2 + 1, make())
    x = make()
    assert torch.equal(function(x), x * 2 + 1)
    assert replays(function) == 3


def test_a_parameter_among_the_arguments_is_read_where_it_lies() -> None:
    model = nn.Linear(3, 3)

    @ptac.optimize(on_refusal="raise")
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return model(x) @ weight

    with torch.no_grad():
        for _ in range(AHEAD + 1):
            function(torch.ones(3), model.weight)
        model.weight.add_(1)
        x = torch.ones(3)
        assert torch.equal(function(x, model.weight), model(x) @ model.weight)
    assert replays(function) == 2


def test_kinds_of_calls_have_a_graph_each_up_to_four(device: StrictDevice) -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="ignore")
    with torch.no_grad():
        for n in range(1, 7):
            for _ in range(AHEAD + 2):
                model(torch.randn(n, 12))
        found = planned_of(model).counts()
        assert found["graphs"] == device.n_captures == site.MOST_GRAPHS
        assert found["reasons"]["of more than 4 kinds on a CUDA device"] > 0
        before = device.n_replays
        for n in range(1, 5):
            x = torch.randn(n, 12)
            assert torch.equal(model(x), model._call_impl(x))
    assert device.n_replays == before + 4


def test_parameters_are_read_at_each_call() -> None:
    model = mlp()
    twin = copy.deepcopy(model)
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(4, 12)
    with torch.no_grad():
        for _ in range(AHEAD + 1):
            model(x)
        for one in (model, twin):
            one[0].weight.mul_(2)
        assert torch.equal(model(x), twin(x))
        assert replays(model) == 2
        for one in (model, twin):
            one.load_state_dict({n: t * 3 for n, t in one.state_dict().items()})
        assert torch.equal(model(x), twin(x))
        assert replays(model) == 3


@pytest.mark.parametrize("how", ["data", "parameter"])
def test_other_memory_means_another_capture(how: str, device: StrictDevice) -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(4, 12)
    with torch.no_grad():
        for i in range(3):
            for _ in range(AHEAD + 2):
                assert torch.equal(model(x), model._call_impl(x))
            assert device.n_captures == i + 1
            assert device.n_aside == 3 * (i + 1)
            if how == "data":
                model[0].weight.data = torch.randn(16, 12)
            else:
                model[0].weight = nn.Parameter(torch.randn(16, 12))
    assert graphs(model) == 1


def test_memory_that_changes_too_often_is_refused() -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="ignore")
    x = torch.randn(4, 12)
    with torch.no_grad():
        for _ in range(site.MOST_AGAIN + 1):
            for _ in range(AHEAD + 2):
                model(x)
            model[0].weight.data = torch.randn(16, 12)
    [reason] = reasons(model)
    assert reason == "a parameter or buffer has other memory too often for graphs"


def test_modes_have_graphs_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    twin = copy.deepcopy(model)
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(4, 4)
    with torch.no_grad():
        for training in (True, False):
            model.train(training)
            twin.train(training)
            for _ in range(AHEAD + 2):
                torch.manual_seed(3)
                y = model(x)
                torch.manual_seed(3)
                assert torch.equal(y, twin(x))
    assert replays(model) == 4


def test_random_numbers_go_on() -> None:
    """Each replay draws the next ones, as calls do that nobody captures."""
    model, x = nn.Dropout(0.5), torch.ones(64)
    torch.manual_seed(5)
    expected = [model(x) for _ in range(8)]
    end = torch.rand(1)
    ptac.optimize(model, on_refusal="raise")
    torch.manual_seed(5)
    for one in expected:
        assert torch.equal(model(x), one)
    assert torch.equal(torch.rand(1), end)
    assert replays(model) == 4


def test_generators_of_the_program_are_registered() -> None:
    generator = torch.Generator()

    def draw(x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=generator)

    x = torch.zeros(5)
    generator.manual_seed(1)
    expected = [draw(x) for _ in range(8)]
    generator.manual_seed(1)
    planned = ptac.optimize(draw, on_refusal="raise")
    for one in expected:
        assert torch.equal(planned(x), one)
    assert replays(planned) == 4


def test_settings_are_compared(device: StrictDevice) -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(4, 12)
    with torch.no_grad():
        for settings in ("a",), ("b",):
            device.settings = settings
            for _ in range(AHEAD + 1):
                model(x)
        assert device.n_captures == 2
        device.settings = ("a",)
        model(x)
    assert (device.n_captures, device.n_replays) == (2, 3)


def test_inference_mode() -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(4, 12)
    with torch.inference_mode():
        for _ in range(AHEAD + 2):
            y = model(x)
        assert y.is_inference()
    with torch.no_grad():
        assert not model(x).is_inference()
    assert replays(model) == 2


# --- when calls run eagerly, and what is freed


def ready() -> tuple[nn.Module, Tensor]:
    model, x = mlp(), torch.randn(2, 12)
    ptac.optimize(model, on_refusal="raise")
    with torch.no_grad():
        for _ in range(AHEAD + 1):
            model(x)
    assert replays(model) == 1
    return model, x


def test_within_a_capture_of_the_programs(
    device: StrictDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = ready()
    monkeypatch.setattr(device, "is_capturing", lambda: True)
    with torch.no_grad():
        model(x)
    assert (replays(model), reasons(model)) == (
        1, ["the program captures a graph itself"],
    )  # fmt: skip


def test_where_the_device_cannot(device: StrictDevice) -> None:
    model, x = ready()
    device.reason = "torch's CUDA allocator is cudaMallocAsync"
    with torch.no_grad():
        model(x)
    assert (replays(model), reasons(model)) == (1, [device.reason])


def test_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = ready()
    process = planned_of(model).graphs._pool.process
    monkeypatch.setattr("os.getpid", lambda: process + 1)
    with torch.no_grad():
        model(x)
    assert replays(model) == 1


def test_autocast_around_a_call_hooks_and_modes() -> None:
    model, x = ready()
    planned_of(model).on_refusal = "ignore"
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
        handle = model[0].register_forward_hook(lambda *_: None)
        model(x)
        handle.remove()
    assert replays(model) == 1


@pytest.mark.parametrize("how", ["disable", "unoptimize", "collect"])
def test_graphs_are_freed(how: str) -> None:
    model, _ = ready()
    graph = weakref.ref(planned_of(model).graphs._captured[0]._graph)
    assert graph() is not None
    if how == "disable":
        ptac.disable("graph_optimization")
    elif how == "unoptimize":
        ptac.unoptimize(model)
    else:
        del model
        gc.collect()
    assert graph() is None


def test_what_a_graph_reads_lives_as_long(device: StrictDevice) -> None:
    """A tensor of some object's is held, like those of plans."""

    class Holder:
        pass

    holder: Any = Holder()
    holder.scale = torch.full((3,), 2.0)
    home = {"holder": holder}

    def function(x: Tensor) -> Tensor:
        return x * next(iter(home.values())).scale

    planned, _ = captured(function, torch.ones(3))
    del holder.scale
    assert torch.equal(planned(torch.ones(3)), torch.full((3,), 2.0))


def test_the_report_tells() -> None:
    model, _ = ready()
    assert "Sequential: 1 calls by 1 CUDA graphs, 4 eager" in str(ptac.report())
    assert planned_of(model).counts()["plans"] == 0
