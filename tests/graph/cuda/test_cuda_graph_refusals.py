"""What is refused before a capture, and captures that fail."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stepping import batches, mlp, plain
from strict_device import StrictDevice
from torch import Tensor, nn
from twins import AHEAD, Net, Twins, adam, graphs, reasons, replays, sgd

import pai_torchacc as ptac
from pai_torchacc.graph import CannotPlan
from pai_torchacc.graph.cuda import capturing


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


def test_a_scaler_within() -> None:
    model = mlp()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu")

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    said = refused(step, *batches(1, 4, 12)[0])
    assert "number is read in Python" in said


def test_a_scaler_that_asks_nothing() -> None:
    """As with fused optimizers, which look at infinities themselves."""
    model = mlp()
    scaler = torch.amp.GradScaler("cpu")

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler._per_optimizer_states = dict(scaler._per_optimizer_states)  # type: ignore
        return loss

    said = refused(step, *batches(1, 4, 12)[0])
    assert said.startswith("a GradScaler steps")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torch.distributed.is_initialized", "ranks talk to each other"),
        ("torch.is_anomaly_enabled", "autograd looks for anomalies"),
    ],
)
def test_surroundings(monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    """Steps are refused there, and those that were captured are made eagerly."""
    twins = Twins(mlp(), on_refusal="ignore")
    for batch in batches(7, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 2
    monkeypatch.setattr(name, lambda: True)
    for batch in batches(2, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 2
    assert said in " ".join(reasons(twins.step))
    other = Twins(mlp(), on_refusal="ignore")
    for batch in batches(7, 4, 12):
        other.call(*batch)
    assert graphs(other.step) == 0
    assert said in " ".join(reasons(other.step))


def test_explain_says_that_there_is_no_table() -> None:
    with torch.no_grad():
        text = str(ptac.explain(mlp(), torch.randn(2, 12)))
    assert "calls on a CUDA device are captured, and have no table" in text


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


def test_calls_of_too_many_kinds() -> None:
    planned = ptac.optimize(lambda x, rate: x * rate, on_refusal="ignore")
    for i in range(70):
        assert torch.equal(planned(torch.ones(2), i / 7), torch.ones(2) * (i / 7))
    assert "of more than 64 kinds, most of them seldom" in reasons(planned)


def test_conjugate_views() -> None:
    said = refused(lambda x: (x * 2).conj(), torch.ones(2, dtype=torch.complex64))
    assert said == "a conjugate view is read"


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


def test_a_capture_that_fails_before_there_were_gradients(
    device: StrictDevice,
) -> None:
    """Else the call would add to gradients that nothing has computed."""
    device.fails = "CUDA error: unsupported"

    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return step

    twins = Twins(mlp(), build, on_refusal="ignore")
    for batch in batches(AHEAD + 2, 4, 12):
        twins.call(*batch)
        twins.both(lambda model, optimizer: optimizer.zero_grad())
    assert len(reasons(twins.step)) == 1


def test_tensors_that_are_others_from_call_to_call() -> None:
    class Holder:
        scale = torch.ones(2)

    holder = Holder()
    hidden = weakref.WeakValueDictionary({"holder": holder})
    scales = [torch.ones(2) * i for i in range(AHEAD + 3)]

    def function(x: Tensor) -> Tensor:
        return x * next(hidden.values()).scale

    planned = ptac.optimize(function, on_refusal="ignore")
    for scale in scales:
        holder.scale = scale
        assert torch.equal(planned(torch.ones(2)), scale)
    assert reasons(planned) == ["it reads tensors that are others from call to call"]


def test_an_error_of_the_program_in_a_capture(device: StrictDevice) -> None:
    def step_like(x: Tensor) -> Tensor:
        if capturing.layer.is_capturing():
            raise ValueError("no")
        return x + 1

    planned = ptac.optimize(step_like, on_refusal="raise")
    for _ in range(AHEAD):
        planned(torch.ones(2))
    with pytest.raises(CannotPlan, match=r"_refusals.py:\d+: .*ValueError: no"):
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
