"""Calls on a CUDA device, by a stand-in for it that is strict: see strict_device.py."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planning import planned_of
from stepping import batches, mlp, plain
from strict_device import StrictDevice, optimizers_are_capturable
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.graph import CannotPlan
from pai_torchacc.graph.cuda import capturing, site

AHEAD = 4
"""Calls of a kind before the one that is captured."""


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictDevice]:
    strict = StrictDevice()
    monkeypatch.setattr(capturing, "layer", strict)
    optimizers_are_capturable(strict, monkeypatch)
    yield strict
    ptac.disable()


def adam(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, capturable=True, **options)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def replays(target: Any) -> int:
    return planned_of(target).counts()["planned_calls"]


def graphs(target: Any) -> int:
    return planned_of(target).counts()["graphs"]


def reasons(target: Any) -> list[str]:
    return list(planned_of(target).counts()["reasons"])


class Net(nn.Module):
    """Draws random numbers, and keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x)))


class Twins:
    """A step by graphs and one made as ever, of twins, side by side."""

    def __init__(
        self,
        model: nn.Module,
        build: Callable[..., Any] = plain,
        make: Callable[[Any], torch.optim.Optimizer] = sgd,
        on_refusal: Any = "raise",
    ):
        self.models = model, copy.deepcopy(model)
        self.optimizers = [make(one.parameters()) for one in self.models]
        pairs = zip(self.models, self.optimizers, strict=True)
        mine, self.stock = (build(*pair) for pair in pairs)
        self.step = ptac.optimize(mine, on_refusal=on_refusal)

    def call(self, *batch: Tensor) -> Tensor:
        """One step of both, which end alike to the bit."""
        before = torch.get_rng_state()
        ours = self.step(*batch)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        theirs = self.stock(*batch)
        assert torch.equal(after, torch.get_rng_state())
        alike(ours, theirs)
        self.check()
        return ours

    def check(self) -> None:
        one, other = self.models
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.equal(a.grad, b.grad)
        for a, b in zip(one.buffers(), other.buffers(), strict=True):
            assert torch.equal(a, b)

    def both(self, do: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
        for pair in zip(self.models, self.optimizers, strict=True):
            do(*pair)


def alike(ours: Any, theirs: Any) -> None:
    if isinstance(ours, Tensor):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        return
    assert type(ours) is type(theirs)
    for one, other in zip(ours, theirs, strict=True):
        alike(one, other)


# --- inference


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


def captured(function: Any, *args: Any, n: int = AHEAD + 2) -> Any:
    """Call it until it is replayed; its last result."""
    function = ptac.optimize(function, on_refusal="raise")
    for _ in range(n):
        result = function(*args)
    assert replays(function) == n - AHEAD
    return function, result


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


# --- training steps


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("model", [mlp, Net])
def test_steps_train_as_ever(model: Any, make: Any, device: StrictDevice) -> None:
    twins = Twins(model(), make=make)
    for batch in batches(12, 4, 12):
        twins.call(*batch)
    # The first step has no gradients yet, and is of another kind.
    assert device.n_replays == replays(twins.step) == 12 - 1 - AHEAD
    assert device.n_captures == 1


def test_gradients_set_to_zero_in_place() -> None:
    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    twins = Twins(mlp(), build)
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 4
    weight = twins.models[0][0].weight
    weight.grad = weight.grad.clone()  # which a graph has another address of
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert graphs(twins.step) == 1
    assert replays(twins.step) > 4


def accumulate(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def test_gradients_are_accumulated_and_stepped_outside() -> None:
    """Gradients lie in the graph's memory; the optimizer is nobody's business."""
    twins = Twins(mlp(), accumulate)

    def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for i, batch in enumerate(batches(24, 4, 12)):
        twins.call(*batch)
        if i % 2:
            twins.both(update)
            twins.check()
    assert graphs(twins.step) == 2  # without gradients before, and with
    assert replays(twins.step) == 24 - 2 * AHEAD


def test_a_gradient_that_is_held_is_not_written_over() -> None:
    twins = Twins(mlp())
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    before = replays(twins.step)
    held = twins.models[0][0].weight.grad
    then = held.clone()
    for batch in batches(2, 4, 12):
        twins.call(*batch)
    assert torch.equal(held, then)
    assert replays(twins.step) == before
    assert "a gradient of an earlier call is still held" in reasons(twins.step)
    del held
    twins.call(*batches(1, 4, 12)[0])
    assert replays(twins.step) == before + 1


def test_a_view_of_a_gradient_is_not_written_over() -> None:
    twins = Twins(mlp())
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    view = twins.models[0][0].weight.grad.view(-1)
    then = view.clone()
    twins.call(*batches(1, 4, 12)[0])
    assert torch.equal(view, then)


def test_a_gradient_that_is_taken_away_and_kept() -> None:
    twins = Twins(mlp(), accumulate)
    for batch in batches(AHEAD + 2, 4, 12):
        twins.call(*batch)
        kept = [p.grad for p in twins.models[0].parameters()]
        twins.both(lambda model, optimizer: optimizer.zero_grad())
    then = [grad.clone() for grad in kept]
    for batch in batches(3, 4, 12):
        twins.call(*batch)
        twins.both(lambda model, optimizer: optimizer.zero_grad())
    assert all(map(torch.equal, kept, then))


def test_versions_are_counted() -> None:
    """Autograd raises where a step has changed what a graph of its own needs."""
    model = mlp()
    step = ptac.optimize(plain(model, sgd(model.parameters())), on_refusal="raise")
    for batch in batches(7, 4, 12):
        step(*batch)
    x = torch.randn(4, 12)
    loss = model(x).sum()
    before = replays(step)
    step(*batches(1, 4, 12)[0])
    assert replays(step) == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_rate_that_is_a_number_is_captured_again_then_refused() -> None:
    twins = Twins(mlp(), on_refusal="ignore")
    data = batches(30, 4, 12)

    def lower(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    for i, batch in enumerate(data):
        twins.call(*batch)
        if i > 10 and i % 3 == 0:
            twins.both(lower)
    assert replays(twins.step) > 10
    [reason] = reasons(twins.step)
    assert reason.startswith("an optimizer's lr is another too often for graphs")
    assert "lr=torch.tensor(...)" in reason


def test_a_rate_that_is_a_tensor_may_change(device: StrictDevice) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        lr = torch.tensor(0.05)
        return torch.optim.Adam(parameters, lr=lr, capturable=True, foreach=False)

    twins = Twins(mlp(), make=make)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.8) for o in twins.optimizers]
    for batch in batches(14, 4, 12):
        twins.call(*batch)
        for schedule in schedules:
            schedule.step()
    assert device.n_captures == 1
    assert replays(twins.step) == 14 - 1 - AHEAD


def test_a_state_that_is_loaded_means_another_capture(device: StrictDevice) -> None:
    twins = Twins(Net(), make=adam)
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    states = [copy.deepcopy(one.state_dict()) for one in twins.optimizers]
    for batch in batches(3, 4, 12):
        twins.call(*batch)
    assert device.n_captures == 1
    for one, state in zip(twins.optimizers, states, strict=True):
        one.load_state_dict(state)
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    assert device.n_captures == 2


def test_two_optimizers_take_turns() -> None:
    first, second = nn.Linear(12, 5), nn.Linear(12, 5)
    models = nn.ModuleList([first, second])

    def build(models: Any, optimizer: torch.optim.Optimizer) -> Any:
        others = [sgd(models[0].parameters()), adam(models[1].parameters())]

        def step(x: Tensor, y: Tensor, i: int) -> Tensor:
            others[i].zero_grad()
            loss = F.cross_entropy(models[i](x), y)
            loss.backward()
            others[i].step()
            return loss

        return step

    twins = Twins(models, build)
    for i, batch in enumerate(batches(20, 4, 12)):
        twins.call(*batch, i % 2)
    assert graphs(twins.step) == 2
    assert replays(twins.step) >= 8


def test_gradients_are_clipped() -> None:
    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss, norm

        return step

    twins = Twins(mlp(), build)
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 4


def test_autocast_within_a_step() -> None:
    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                scores = model(x)
            loss = F.cross_entropy(scores.float(), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    twins = Twins(mlp(), build)
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 4


# --- what is refused


def refused(function: Any, *args: Any) -> str:
    """The reason; calls are made as ever."""
    planned = ptac.optimize(function, on_refusal="ignore")
    for _ in range(AHEAD + 3):
        planned(*args)
    assert (graphs(planned), replays(planned)) == (0, 0)
    assert not capturing.layer.n_captures
    return " ".join(reasons(planned))


def a_step(
    within: Callable[[Any, Tensor], Any] = lambda optimizer, loss: None,
    make: Any = sgd,
) -> str:
    """Why a step that does so within is refused, though it trains as ever."""

    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            within(optimizer, loss)
            optimizer.step()
            return loss

        return step

    twins = Twins(Net(), build, make, on_refusal="ignore")
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    assert (graphs(twins.step), replays(twins.step)) == (0, 0)
    return " ".join(reasons(twins.step))


def test_numbers_that_are_read() -> None:
    assert "number is read in Python" in a_step(lambda _, loss: loss.item())


def test_an_optimizer_that_counts_on_the_host() -> None:
    said = a_step(make=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    assert "Adam counts its steps on the host: give it capturable=True" in said


def test_a_state_that_is_a_number() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["n"] = state.get("n", 0) + 1
                    parameter.data.add_(parameter.grad, alpha=-0.1 / state["n"])

    said = a_step(make=lambda parameters: Counting(parameters, lr=0.1))
    assert "each step changes it: an optimizer's state is another" in said


def test_a_hook_of_an_optimizer() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = sgd(parameters)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    assert "SGD's step has hooks" in a_step(make=make)


def test_a_schedule_within() -> None:
    model = mlp()
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train = plain(model, optimizer)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = train(x, y)
        schedule.step()
        return loss

    said = refused(step, *batches(1, 4, 12)[0])
    assert "a schedule steps: have it do so outside, and lr be a tensor" in said


def test_an_argument_that_is_written() -> None:
    assert refused(lambda x: x.add_(1), torch.ones(3)) == "an argument is written"


def test_results_whose_sizes_depend_on_data() -> None:
    assert "nonzero depends on the data" in refused(lambda x: x.nonzero(), torch.eye(3))


def test_tensors_made_of_numbers() -> None:
    said = refused(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    assert said == "a tensor is made of Python's numbers"


def test_tensors_that_the_program_keeps() -> None:
    class Holder:
        pass

    home: dict[str, Any] = {"holder": {"holder": Holder()}}

    def keep(x: Tensor) -> Tensor:
        holder = home["holder"]["holder"]
        holder.y = x * 2
        return holder.y + 1

    assert "changes" in refused(keep, torch.ones(2))
    hidden = weakref.WeakValueDictionary({"holder": home["holder"]["holder"]})

    def hide(x: Tensor) -> Tensor:
        holder = next(hidden.values())
        holder.y = x * 2
        return holder.y + 1

    assert "is kept by the program" in refused(hide, torch.ones(2))


def test_an_attribute_that_forward_sets() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.n = getattr(self, "n", 0) + 1
            return x * self.n

    model = Counts()
    ptac.optimize(model, on_refusal="ignore")
    for i in range(12):
        assert torch.equal(model(torch.ones(2)), torch.full((2,), i + 1.0))
    assert graphs(model) == 0


def test_two_arguments_that_share_memory() -> None:
    x = torch.ones(4)
    assert refused(lambda x, y: x + y, x, x[:]) == "two arguments share memory"


def test_parameters_that_get_other_memory() -> None:
    model = mlp()

    def step(x: Tensor, y: Tensor) -> Tensor:
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            parameter.data = parameter.data - 0.1 * parameter.grad
            parameter.grad = None
        return x + 1

    said = refused(step, *batches(1, 4, 12)[0])
    assert "a parameter is given other memory" in said


def test_a_gradient_to_come() -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="raise")
    for _ in range(8):
        model(torch.randn(2, 12)).sum().backward()
    assert graphs(model) == 0
    assert "a gradient is to come" in reasons(model)


def test_devices_that_differ() -> None:
    model = nn.Linear(3, 3).to("meta")
    ptac.optimize(model, on_refusal="ignore")
    for _ in range(2):
        with torch.no_grad(), pytest.raises(RuntimeError):
            model(torch.ones(3))
    [reason] = reasons(model)
    assert reason == "its tensors lie on cpu and meta: move them before the call"


# --- captures that fail


def test_a_capture_that_fails_leaves_no_trace(device: StrictDevice) -> None:
    """The call is made, gradients and states are as they would be."""
    device.fails = "CUDA error: unsupported"
    twins = Twins(Net(), make=adam, on_refusal="ignore")
    for batch in batches(10, 4, 12):
        twins.call(*batch)
    assert (graphs(twins.step), device.n_captures) == (0, 0)
    [reason] = reasons(twins.step)
    assert reason == "it cannot be captured: RuntimeError: CUDA error: unsupported"


def test_an_error_of_the_program_in_a_capture(device: StrictDevice) -> None:
    def step_like(x: Tensor) -> Tensor:
        if capturing.layer.is_capturing():
            raise ValueError("no")
        return x + 1

    planned = ptac.optimize(step_like, on_refusal="raise")
    for _ in range(AHEAD):
        planned(torch.ones(2))
    with pytest.raises(CannotPlan, match=r"test_cuda_graphs.py:\d+: .*ValueError: no"):
        planned(torch.ones(2))
    assert torch.equal(planned(torch.ones(2)), torch.full((2,), 2.0))


def test_an_error_that_the_program_catches(device: StrictDevice) -> None:
    def function(x: Tensor) -> Tensor:
        if capturing.layer.is_capturing():
            try:
                x.sum().item()
            except RuntimeError:
                return x - 1
        return x + 1

    planned = ptac.optimize(function, on_refusal="ignore")
    for _ in range(AHEAD + 2):
        assert torch.equal(planned(torch.ones(2)), torch.full((2,), 2.0))
    assert graphs(planned) == 0


def test_somebody_else_captures(device: StrictDevice) -> None:
    model = mlp()
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(2, 12)
    with torch.no_grad():
        for _ in range(AHEAD):
            model(x)
        busy = device.capture

        def capture(*args: Any) -> Any:
            raise capturing.Busy("another thread captures")

        device.capture = capture  # type: ignore[method-assign]
        model(x)
        device.capture = busy  # type: ignore[method-assign]
        assert (graphs(model), reasons(model)) == (0, ["another thread captures"])
        model(x)
    assert graphs(model) == 1


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


# --- the stand-in is strict


def strict_capture(
    device: StrictDevice, run: Callable[[], Any], n_aside: int = 3
) -> Any:
    pool = device.make_pool(torch.device("cpu"))
    for _ in range(n_aside):
        with device.aside(pool):
            pass
    return pool, *device.capture(pool, (), run)


def test_strict_warm_up(device: StrictDevice) -> None:
    with pytest.raises(AssertionError, match="warm up"):
        strict_capture(device, lambda: torch.ones(2), n_aside=2)


def test_strict_capture_executes_nothing(device: StrictDevice) -> None:
    x = torch.ones(3)
    pool, graph, y = strict_capture(device, lambda: x.add_(1) * 2)
    assert torch.equal(x, torch.ones(3))
    assert y.isnan().all()
    with device.replaying(pool, []):
        device.replay(graph)
    assert torch.equal(x, torch.full((3,), 2.0))
    assert torch.equal(y, torch.full((3,), 4.0))


def test_strict_waiting(device: StrictDevice) -> None:
    def run() -> None:
        with pytest.raises(RuntimeError, match="not permitted"):
            torch.ones(2).sum().item()

    with pytest.raises(RuntimeError, match="previous error"):
        strict_capture(device, run)


def test_strict_memory_that_is_gone(device: StrictDevice) -> None:
    held = [torch.ones(3)]
    pool, graph, _ = strict_capture(device, lambda: held[0] * 2)
    held.clear()
    with (
        device.replaying(pool, []),
        pytest.raises(AssertionError, match="memory that nobody holds"),
    ):
        device.replay(graph)


def test_strict_addresses_and_results_that_nobody_holds(device: StrictDevice) -> None:
    x = torch.ones(3)
    pool, graph, y = strict_capture(device, lambda: x * 2)
    alias, then = x.data, y.data
    x.data = torch.zeros(3)
    with device.replaying(pool, []):
        device.replay(graph)
    assert torch.equal(then, torch.full((3,), 2.0))
    assert torch.equal(alias, torch.ones(3))


def test_strict_order_and_generators(device: StrictDevice) -> None:
    x = torch.ones(3)
    _, graph, _ = strict_capture(device, lambda: x * 2)
    with pytest.raises(AssertionError, match="nothing orders"):
        device.replay(graph)
    generator = torch.Generator()
    with pytest.raises(RuntimeError, match="not in capture"):
        strict_capture(device, lambda: torch.rand(2, generator=generator))
