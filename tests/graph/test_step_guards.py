"""Changes between two training steps are seen; what must not be planned is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planning import planned_of, reasons
from stepping import Build, Residual, Step, alike, batches, mlp, plain, sgd
from torch import Tensor, nn

import pai_torchacc as ptac

# --- what changes between two steps


class Trained:
    """A model under training by a planned step, beside one that is trained eagerly."""

    def __init__(self, model: nn.Module, n_steps: int = 4):
        self.models = model, copy.deepcopy(model)
        self.optimizers = [sgd(one.parameters()) for one in self.models]
        self.eager = plain(self.models[1], self.optimizers[1])
        self.planned = ptac.optimize(
            plain(self.models[0], self.optimizers[0]), on_refusal="ignore"
        )
        for _ in range(n_steps):
            self.go()
        assert self.n_planned() == n_steps - 2

    def n_planned(self) -> int:
        return int(planned_of(self.planned).counts()["planned_calls"])

    def go(self, *sizes: int) -> None:
        ((x, y),) = batches(1, *(sizes or (8, 12)))
        ours, theirs = self.planned(x, y), self.eager(x, y)
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-5)
        alike(*self.models)

    def each(self, change: Callable[[nn.Module, Any], Any]) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            change(model, optimizer)


def lower_rate(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.001


def freeze(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(False)


def load(model: Any, optimizer: Any) -> None:
    torch.manual_seed(3)
    model.load_state_dict(
        {k: torch.randn_like(v) for k, v in model.state_dict().items()}
    )


def scale_data(model: Any, optimizer: Any) -> None:
    model[0].weight.data = model[0].weight.data * 0.5


def set_gradients(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def drop_gradients(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def evaluate(model: Any, optimizer: Any) -> None:
    model.eval()


CHANGES = (
    lower_rate,
    freeze,
    load,
    scale_data,
    set_gradients,
    drop_gradients,
    evaluate,
)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_steps_are_seen(change: Any) -> None:
    ptac.enable()
    model = nn.Sequential(
        nn.Linear(12, 16), nn.Dropout(0.0), nn.ReLU(), nn.Linear(16, 5)
    )
    trained = Trained(model)
    trained.each(change)
    for _ in range(4):
        trained.go()
    trained.go(3, 12)
    assert trained.n_planned() > 2


@pytest.mark.parametrize("kind", ["tensor", "accumulated", "module"])
def test_hooks_are_called(kind: str) -> None:
    ptac.enable()
    trained = Trained(mlp())
    heard: list[Any] = []

    def listen(model: Any, optimizer: Any) -> None:
        if kind == "tensor":
            model[0].weight.register_hook(lambda grad: heard.append(grad) or grad * 0.5)
        elif kind == "accumulated":
            model[0].weight.register_post_accumulate_grad_hook(heard.append)
        else:
            model[2].register_full_backward_hook(lambda *args: heard.append(args))

    trained.each(listen)
    before = trained.n_planned()
    for _ in range(3):
        trained.go()
    assert len(heard) == 6
    assert trained.n_planned() == before


def test_a_name_that_stands_for_another_model() -> None:
    ptac.enable()
    model, optimizer = mlp(), None
    optimizer = sgd(model.parameters())

    @ptac.optimize
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    data = batches(4, 8, 12)
    for batch in data:
        step(*batch)
    old, old_weights = model, copy.deepcopy(model.state_dict())
    model = mlp()
    optimizer = sgd(model.parameters())
    twin = copy.deepcopy(model)
    eager = plain(twin, sgd(twin.parameters()))
    for batch in data:
        step(*batch)
        eager(*batch)
    alike(model, twin)
    for name, value in old.state_dict().items():
        assert torch.equal(value, old_weights[name])
    assert planned_of(step).counts()["planned_calls"] == 4


def test_results_and_gradients_that_are_kept_stay() -> None:
    ptac.enable()
    trained = Trained(mlp())
    ((x, y),) = batches(1, 8, 12)
    loss = trained.planned(x, y)
    grads = [parameter.grad for parameter in trained.models[0].parameters()]
    copies = [grad.clone() for grad in grads], loss.clone()
    before = trained.n_planned()
    for _ in range(3):
        trained.planned(*batches(1, 8, 12)[0])
    assert trained.n_planned() == before + 3
    assert torch.equal(loss, copies[1])
    for grad, kept in zip(grads, copies[0], strict=True):
        assert torch.equal(grad, kept)


@pytest.mark.parametrize("fused", [True, False])
def test_autograd_sees_what_is_written(fused: bool) -> None:
    if fused:
        ptac.enable()
    counted = []
    for is_planned in (False, True):
        model = Residual()
        step = plain(model, sgd(model.parameters()))
        if is_planned:
            step = ptac.optimize(step, on_refusal="raise")
        for batch in batches(3, 4, 3, 8, 8):
            step(*batch)
        written = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        before = {name: tensor._version for name, tensor in written.items()}
        step(*batches(1, 4, 3, 8, 8)[0])
        counted.append({n: t._version - before[n] for n, t in written.items()})
        assert model.norm.num_batches_tracked == 4
    assert planned_of(step).counts()["planned_calls"] == 2
    assert counted[0] == counted[1]


# --- what is refused


def refused(build: Build, text: str, model: nn.Module | None = None) -> None:
    ptac.enable()
    model = model or mlp()
    step = ptac.optimize(build(model, sgd(model.parameters())), on_refusal="ignore")
    for batch in batches(3, 8, 12):
        step(*batch)
    assert planned_of(step).counts()["planned_calls"] == 0
    assert any(text in reason for reason in reasons(step)), reasons(step)


def test_a_number_read_in_a_step() -> None:
    def build(model: Any, optimizer: Any) -> Step:
        return lambda x, y: plain(model, optimizer)(x, y).item()

    refused(build, "number is read")


def test_a_graph_that_is_kept() -> None:
    def build(model: Any, optimizer: Any) -> Step:
        def step(x: Tensor, y: Tensor) -> None:
            F.cross_entropy(model(x), y).backward(retain_graph=True)

        return step

    refused(build, "keeps its graph")


def test_a_result_that_others_derive() -> None:
    def build(model: Any, optimizer: Any) -> Step:
        def step(x: Tensor, y: Tensor) -> Tensor:
            F.cross_entropy(model(x), y).backward()
            return model(x)

        return step

    refused(build, "wants a gradient")


def test_a_closure_of_an_optimizer() -> None:
    def build(model: Any, optimizer: Any) -> Step:
        def step(x: Tensor, y: Tensor) -> Tensor:
            def closure() -> Tensor:
                return plain(model, optimizer)(x, y)

            return optimizer.step(closure)

        return step

    refused(build, "closure")


def test_a_parameter_that_no_module_has() -> None:
    weight = torch.randn(12, 5, requires_grad=True)

    def build(model: Any, optimizer: Any) -> Step:
        def step(x: Tensor, y: Tensor) -> None:
            F.cross_entropy(model(x) + x @ weight, y).backward()

        return step

    refused(build, "no known module")


def test_a_recurrent_layer_of_onednn() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(12, 5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x[:, None])[0][:, -1]

    refused(plain, "asks whether autograd is on", Last())


@pytest.mark.parametrize("what", ["anomaly", "saved"])
def test_who_looks_at_autograd_sees_it(what: str) -> None:
    ptac.enable()
    trained = Trained(mlp())
    before, saved = trained.n_planned(), []
    ((x, y),) = batches(1, 8, 12)
    if what == "anomaly":
        with torch.autograd.detect_anomaly(check_nan=False):
            trained.planned(x, y)
    else:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append(t) or t, lambda t: t
        ):
            trained.planned(x, y)
        assert saved
    assert trained.n_planned() == before
    trained.planned(x, y)
    assert trained.n_planned() == before + 1


def test_an_error_of_the_program_is_torchs() -> None:
    ptac.enable()
    trained = Trained(mlp())
    ((x, y),) = batches(1, 8, 12)
    y[0] = 7  # of five classes
    for step in (trained.planned, trained.eager):
        with pytest.raises(IndexError, match="out of bounds"):
            step(x, y)
    trained.go()


def test_an_optimizer_that_raises() -> None:
    ptac.enable()
    trained = Trained(mlp())
    del trained.optimizers[0].param_groups[0]["lr"]
    ((x, y),) = batches(1, 8, 12)
    with pytest.raises(KeyError, match="lr"):
        trained.planned(x, y)
    trained.optimizers[0].param_groups[0]["lr"] = 0.05
    trained.models[1].load_state_dict(trained.models[0].state_dict())
    trained.optimizers[1].load_state_dict(trained.optimizers[0].state_dict())
    before = trained.n_planned()
    trained.planned(*batches(1, 8, 12)[0])
    assert trained.n_planned() == before + 1


def test_steps_leave_nothing_behind() -> None:
    import gc

    ptac.enable()
    trained = Trained(mlp())
    ((x, y),) = batches(1, 8, 12)

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(one, Tensor) for one in gc.get_objects())

    trained.planned(x, y)
    before = tensors()
    for _ in range(500):
        trained.planned(x, y)
    assert tensors() == before


def test_switched_off_steps_are_eager() -> None:
    ptac.enable()
    trained = Trained(mlp())
    before = trained.n_planned()
    ptac.disable("graph_optimization")
    trained.go()
    assert trained.n_planned() == before
    ptac.enable_graph_optimization()
    for _ in range(3):
        trained.go()
    assert trained.n_planned() > before


def test_a_function_that_leaves_backward_to_others() -> None:
    ptac.enable()
    model = mlp()
    forward = ptac.optimize(lambda x: model(x).exp(), on_refusal="raise")
    ((x, _),) = batches(1, 8, 12)
    for _ in range(6):
        forward(x).sum().backward()
    assert planned_of(forward).counts()["planned_calls"] == 0
    with torch.no_grad():
        for _ in range(3):
            forward(x)
    assert planned_of(forward).counts()["planned_calls"] == 2


class Trainer:
    """Has its step as a method, and more attributes than that reads."""

    def __init__(self, model: nn.Module):
        self.model, self.optimizer = model, sgd(model.parameters())
        self.n_steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y) * self.factor

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss * 2


def decorated() -> type[Trainer]:
    """A class whose step is optimized where it is defined."""

    class Decorated(Trainer):
        @ptac.optimize
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            return super().step(x, y)

    return Decorated


@pytest.mark.parametrize("kind", ["instance", "class"])
def test_a_step_that_is_a_method(kind: str) -> None:
    ptac.enable()
    model = mlp()
    trainers = Trainer(model), Trainer(copy.deepcopy(model))
    if kind == "class":
        trainers = decorated()(model), trainers[1]
    else:
        trainers[0].step = ptac.optimize(trainers[0].step, on_refusal="raise")
    for trainer in trainers:
        trainer.factor = 1.0
    before = planned_of(trainers[0].step).counts()["planned_calls"]
    for at, (x, y) in enumerate(batches(9, 8, 12)):
        losses = []
        for trainer in trainers:
            trainer.n_steps += 1  # which the step does not read
            if at == 5:
                trainer.factor = 3.0
            losses.append(trainer.step(x, y).detach())
        torch.testing.assert_close(*losses)
        alike(trainers[0].model, trainers[1].model)
    counted = planned_of(trainers[0].step).counts()
    assert counted["planned_calls"] >= before + 4, counted["reasons"]


def test_a_step_that_is_defined_before_its_names() -> None:
    ptac.enable()

    @ptac.optimize(on_refusal="raise")
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    model = mlp()
    optimizer = sgd(model.parameters())
    twin = copy.deepcopy(model)
    eager = plain(twin, sgd(twin.parameters()))
    for batch in batches(5, 8, 12):
        step(*batch)
        eager(*batch)
    alike(model, twin)
    assert planned_of(step).counts()["planned_calls"] == 3


def test_names_that_change_in_each_call_are_told() -> None:
    ptac.enable()
    model = mlp()
    factor = 0.0

    @ptac.optimize(on_refusal="ignore")
    def step(x: Tensor) -> None:
        (model(x).sum() * factor).backward()

    for _ in range(20):
        factor += 0.1
        step(torch.ones(2, 12))
    assert any("change from call to call" in reason for reason in reasons(step))
    assert isinstance(planned_of(step).refused["changes"], ptac.graph.CannotPlan)


def test_who_watches_losses_sees_them() -> None:
    ptac.enable()
    trained = Trained(mlp())
    before = trained.n_planned()
    with ptac.enable_adaptive_lr():
        for _ in range(3):
            trained.planned(*batches(1, 8, 12)[0])
        assert trained.n_planned() == before
        assert "adaptive_lr watches the losses" in reasons(trained.planned)


def test_ranks_that_talk_to_each_other() -> None:
    from torch import distributed

    ptac.enable()
    model = mlp()
    step = ptac.optimize(plain(model, sgd(model.parameters())), on_refusal="ignore")
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for batch in batches(3, 8, 12):
            step(*batch)
    finally:
        distributed.destroy_process_group()
    assert planned_of(step).counts()["planned_calls"] == 0
    (reason,) = set(reasons(step))
    assert reason.startswith("ranks talk to each other")
