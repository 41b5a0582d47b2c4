"""The switch adaptive_lr beside everything else that training programs do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from adapting import closure_of, data, network, train, weights
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

import pai_torchacc as ptac
from pai_torchacc.adaptive_lr import registry

pytestmark = pytest.mark.usefixtures("adaptive")


@pytest.fixture(params=["alone", "with fusion"])
def adaptive(request: pytest.FixtureRequest) -> Any:
    if request.param == "with fusion":
        assert ptac.enable()
    assert ptac.enable_adaptive_lr()
    yield
    ptac.disable()


def report(optimizer: Any) -> Any:
    return ptac.adaptive_lr_report(optimizer)


SCHEDULERS = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 40),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.01, total_steps=60),
    "step": lambda o: lr_scheduler.StepLR(o, 20, 0.1),
    "warm-up": lambda o: lr_scheduler.LambdaLR(o, lambda i: min(1.0, i / 10)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_show_the_users_rates(name: str) -> None:
    """And their decay multiplies: the multiplier does not make up for it."""
    net, optimizer = network(lr=1e-3)
    scheduler = SCHEDULERS[name](optimizer)
    shown: list[Any] = []

    def after() -> None:
        shown.append((optimizer.param_groups[0]["lr"], scheduler.get_last_lr()))
        scheduler.step()

    train(net, optimizer, 40, after=after)
    history = report(optimizer).history
    assert max(moment.multiplier for moment in history) > 3
    for (lr, _), moment in zip(shown, history, strict=True):
        assert moment.lr == pytest.approx(lr * moment.multiplier)
    ptac.disable("adaptive_lr")
    plain_net, plain = network(lr=1e-3)
    scheduler = SCHEDULERS[name](plain)
    optimizer, ours = plain, list(shown)
    shown.clear()
    train(plain_net, plain, 40, after=after)
    assert shown == ours


def test_a_decay_is_not_made_up_for() -> None:
    ends = []
    for gamma in (1.0, 1e-3):
        net, optimizer = network(lr=1e-3)
        scheduler = lr_scheduler.StepLR(optimizer, 30, gamma)
        train(net, optimizer, 30, after=scheduler.step)
        before = weights(net)
        train(net, optimizer, 1, after=scheduler.step)
        moved = [(a - b).abs().max() for a, b in zip(before, weights(net), strict=True)]
        ends.append(max(moved))
    assert ends[1] < 0.01 * ends[0]


def test_reduce_on_plateau() -> None:
    net, optimizer = network(lr=1e-3)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    losses = train(net, optimizer, 12)
    for _ in range(4):
        scheduler.step(losses[0] + 1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
    train(net, optimizer, 2)
    found = report(optimizer)
    assert found.lr == pytest.approx(1e-4 * found.multiplier)


def test_groups_keep_their_ratios() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    groups = [
        {"params": net[0].parameters(), "lr": 1e-3},
        {"params": net[2].parameters(), "lr": 1e-4},
    ]
    optimizer = optim.SGD(groups)
    x, y = data()
    for _ in range(20):
        before = weights(net)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        grads = [p.grad.clone() for p in net.parameters()]
        optimizer.step()
    times = report(optimizer).multiplier
    assert times > 2
    for p, b, g, lr in zip(
        weights(net), before, grads, (1e-3, 1e-3, 1e-4, 1e-4), strict=True
    ):
        torch.testing.assert_close(p, b - lr * times * g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_decoupled_decay_goes_by_the_users_rate(fused: bool) -> None:
    w = torch.ones(4, requires_grad=True)
    dead = torch.ones(4, requires_grad=True)
    optimizer = optim.AdamW([w, dead], lr=1e-3, weight_decay=0.1, fused=fused)
    for i in range(60):
        optimizer.zero_grad()
        ((w * torch.arange(1.0, 5.0)).square().mean() + 0.0 * dead.sum()).backward()
        optimizer.step()
        expected = (1 - 1e-4) ** (i + 1)
        assert dead[0].item() == pytest.approx(expected, rel=1e-4)
    assert report(optimizer).multiplier > 1.5


def test_accumulated_losses_are_one() -> None:
    ends = []
    for n in (1, 4):
        net, optimizer = network(lr=1e-3)
        x, y = data()
        for _ in range(40):
            optimizer.zero_grad()
            for a, b in zip(x.chunk(n), y.chunk(n), strict=True):
                (F.cross_entropy(net(a), b) / n).backward()
            optimizer.step()
        ends.append(report(optimizer))
    assert ends[0].mode == ends[1].mode == "loss"
    assert ends[1].multiplier == pytest.approx(ends[0].multiplier, rel=0.05)
    assert ends[1].history[0].loss == pytest.approx(ends[0].history[0].loss, rel=1e-4)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_two_models_with_optimizers_of_their_own(set_to_none: bool) -> None:
    x, y = data()
    pairs = [network(lr=1e-3), network(optim.Adam, lr=1e-3)]
    for _ in range(40):
        for net, optimizer in pairs:
            optimizer.zero_grad(set_to_none=set_to_none)
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    for _, optimizer in pairs:
        assert report(optimizer).mode == "loss"
        assert report(optimizer).multiplier > 1.5


def test_two_optimizers_of_one_model_share_its_loss() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    both = [optim.SGD(net[i].parameters(), lr=1e-3) for i in (0, 2)]
    x, y = data()
    losses = []
    for _ in range(60):
        for optimizer in both:
            optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        for optimizer in both:
            optimizer.step()
        losses.append(loss.item())
    assert [report(o).mode for o in both] == ["loss", "loss"]
    halves = [m.loss for m in report(both[0]).history[1:]]
    assert halves == pytest.approx([v / 2 for v in losses[1:]])
    assert losses[-1] < 0.5 * losses[0]


def test_optimizers_that_work_against_each_other_go_without_losses() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 2), nn.Linear(2, 1)
    make, tell = (optim.SGD(m.parameters(), lr=0.01) for m in (maker, judge))
    for _ in range(12):
        noise, real = torch.randn(16, 4), torch.randn(16, 2)
        tell.zero_grad()
        F.softplus(-judge(real)).mean().backward()
        F.softplus(judge(maker(noise).detach())).mean().backward()
        tell.step()
        make.zero_grad()
        F.softplus(-judge(maker(noise))).mean().backward()  # reaches both
        make.step()
    for optimizer in (make, tell):
        assert report(optimizer).mode == "loss_free"
        assert "throws away" in report(optimizer).reason


LOSSES = {
    "negative": (lambda a, b: F.cross_entropy(a, b) - 5, "below 0"),
    "constant": (lambda a, b: F.cross_entropy(a, b) * 0 + 1, "constant"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_losses_that_say_nothing(name: str, cls: type) -> None:
    loss, why = LOSSES[name]
    net, optimizer = network(cls, lr=1e-3)
    train(net, optimizer, 60, loss)
    found = report(optimizer)
    assert found.mode == "loss_free" and why in found.reason
    if cls is optim.Adam:
        assert found.multiplier == 1


def test_a_known_floor_makes_negative_losses_usable() -> None:
    ptac.enable_adaptive_lr(floor=-5.0)
    net, optimizer = network(lr=1e-3)
    train(net, optimizer, 40, lambda a, b: F.cross_entropy(a, b) - 5)
    assert report(optimizer).mode == "loss" and report(optimizer).multiplier > 2
    assert report(optimizer).floor >= -5


@pytest.mark.parametrize("how", ["autograd.grad", "weighted root", "several roots"])
def test_gradients_without_a_scalar_loss(how: str) -> None:
    net, optimizer = network(lr=1e-3)
    x, y = data()
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y, reduction="none")
        if how == "autograd.grad":
            params = list(net.parameters())
            grads = torch.autograd.grad(loss.mean(), params)
            for p, g in zip(params, grads, strict=True):
                p.grad = g
        elif how == "weighted root":
            loss.backward(torch.full_like(loss, 1 / len(loss)))
        else:
            torch.autograd.backward([loss[:9].mean(), loss[9:].mean()])
        optimizer.step()
    assert report(optimizer).mode == "loss_free"
    assert "no scalar loss" in report(optimizer).reason


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: F.cross_entropy(a, b, label_smoothing=0.2),
        lambda a, b: F.mse_loss(a, F.one_hot(b, 3).float()),
        lambda a, b: F.cross_entropy(a, (b + torch.arange(len(b)) % 2) % 3),
    ],
    ids=["label smoothing", "mean squared error", "label noise"],
)
@pytest.mark.parametrize("lr", [1e-3, 0.3])
def test_losses_with_a_floor(loss: Any, lr: float) -> None:
    """No worse than stock's by more than a tenth, and better for the small rate."""
    ours = sum(train(*network(lr=lr), 300, loss)[-30:])
    ptac.disable()
    stock = sum(train(*network(lr=lr), 300, loss)[-30:])
    assert ours < (1.1 if lr == 0.3 else 1.0) * stock


def test_batch_norm() -> None:
    def net() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        layers = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
        )
        return layers, optim.SGD(layers.parameters(), lr=1e-4, momentum=0.9)

    ours = train(*net(), 120)
    ptac.disable()
    assert sum(ours[-6:]) < 0.5 * sum(train(*net(), 120)[-6:])


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("fused", [False, True])
def test_scaled_losses(cls: type, fused: bool) -> None:
    """Scaled by 2 ** 16, with an infinite gradient in between: the same multipliers."""
    found = []
    for is_scaled in (False, True):
        net, optimizer = network(cls, lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", enabled=is_scaled)
        x, y = data()
        for i in range(40):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(net(x), y)).backward()
            if i == 20 and is_scaled:
                net[0].weight.grad[0, 0] = float("inf")
                before = weights(net)
            scaler.step(optimizer)
            scaler.update()
            if i == 20 and is_scaled:
                assert all(map(torch.equal, before, weights(net)))
                net[0].weight.grad = None
        assert report(optimizer).mode == "loss"
        found.append([m.multiplier for m in report(optimizer).history])
    assert found[1][:20] == pytest.approx(found[0][:20], rel=1e-2)
    assert found[1][-1] > 1.5


def test_clipped_gradients() -> None:
    net, optimizer = network(lr=1e-3)
    x, y = data()
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(v < 2 * losses[0] for v in losses)


@pytest.mark.parametrize("how", ["norm", "after unscaling", "fused"])
def test_clipping_does_not_raise_the_rate(how: str) -> None:
    """The first-order fall of the loss is that of a clipped step, not its square."""
    net, optimizer = network(lr=1e-3, fused=how == "fused")
    train(net, optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", enabled=how != "norm")
    before = report_numbers(optimizer)
    optimizer.zero_grad()
    x, y = data()
    scaler.scale(F.cross_entropy(net(x), y)).backward()
    scaler.unscale_(optimizer)
    norm = float(nn.utils.clip_grad_norm_(net.parameters(), 0.01))
    assert norm > 0.1
    scaler.step(optimizer)
    found = (report_numbers(optimizer) - 0.8 * before) / 0.2
    assert found == pytest.approx(1e-3 * norm * 0.01, rel=1e-3)


def report_numbers(optimizer: Any) -> float:
    """The descent that the tuner has smoothed."""
    return registry.tuner_of(optimizer).field("descent")


def test_batches_that_two_optimizers_skip() -> None:
    """Nobody steps by a loss that both throw away: they do not work against another."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    both = [optim.SGD(net[i].parameters(), lr=1e-3) for i in (0, 2)]
    x, y = data()
    for i in range(40):
        for optimizer in both:
            optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if i % 3:
            for optimizer in both:
                optimizer.step()
    assert [report(o).mode for o in both] == ["loss", "loss"]


def test_hooks_and_exceptions_see_the_users_rate() -> None:
    net, optimizer = network(lr=1e-4)
    train(net, optimizer, 30)
    seen = []

    def look(o: Any, args: Any, kwargs: Any) -> None:
        seen.append(o.param_groups[0]["lr"])

    def fail(o: Any, args: Any, kwargs: Any) -> None:
        raise KeyboardInterrupt

    handles = [
        optimizer.register_step_pre_hook(look),
        optimizer.register_step_post_hook(look),
        optimizer.register_step_post_hook(fail),
    ]
    with pytest.raises(KeyboardInterrupt):
        train(net, optimizer, 1)
    assert seen == [1e-4, 1e-4] and optimizer.param_groups[0]["lr"] == 1e-4
    for handle in handles:
        handle.remove()
    n_steps = report(optimizer).steps
    train(net, optimizer, 2)
    assert report(optimizer).steps == n_steps + 2
    net[0].weight.grad = None
    optimizer.param_groups[0]["params"].append("no parameter")
    with pytest.raises(AttributeError):
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 1e-4


def test_parameters_added_on_the_way() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = optim.SGD(net[2].parameters(), lr=1e-3)
    train(net, optimizer, 20)
    optimizer.add_param_group({"params": net[0].parameters(), "lr": 1e-4})
    before = weights(net)
    losses = train(net, optimizer, 60)
    assert not torch.equal(before[0], weights(net)[0])
    assert losses[-1] < losses[0] and report(optimizer).mode == "loss"


def test_functions_of_torch_called_by_others_are_torchs() -> None:
    net, optimizer = network(lr=1e-4)
    train(net, optimizer, 40)
    assert report(optimizer).multiplier > 3
    p, g = torch.ones(3), torch.ones(3)
    from torch.optim.sgd import sgd

    sgd(
        [p], [g], [None], weight_decay=0, momentum=0, lr=0.5, dampening=0,
        nesterov=False, maximize=False,
    )  # fmt: skip
    assert torch.equal(p, torch.full((3,), 0.5))


def test_maximizing_is_left_alone() -> None:
    net, optimizer = network(lr=1e-3, maximize=True)
    train(net, optimizer, 3, lambda a, b: -F.cross_entropy(a, b))
    assert report(optimizer).mode == "off" and "maximizes" in report(optimizer).reason


def test_sparse_gradients_are_left_alone() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = optim.SGD(embedding.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.tensor([1, 2])).square().mean().backward()
        optimizer.step()
    assert report(optimizer).mode == "off" and "sparse" in report(optimizer).reason


@pytest.mark.parametrize("is_first", [True, False])
def test_sparse_gradients_of_one_group_of_two(is_first: bool) -> None:
    ends = []
    for adaptive in (False, True):
        ptac.disable()
        if adaptive:
            ptac.enable_adaptive_lr()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
        groups = [{"params": part.parameters()} for part in net]
        optimizer = optim.SGD(groups if is_first else groups[::-1], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.tensor([1, 2])).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([p.flatten() for p in net.parameters()]))
    assert report(optimizer).mode == "off" and "sparse" in report(optimizer).reason
    assert torch.equal(*ends)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    w = torch.randn(8, 3, dtype=dtype).requires_grad_()
    optimizer = optim.SGD([w], lr=1e-4)
    x, y = data()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy((x.to(dtype) @ w).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0] and report(optimizer).multiplier > 3


def test_infinite_losses_change_nothing() -> None:
    net, optimizer = network(lr=1e-3)
    train(net, optimizer, 20)
    before = report(optimizer).multiplier
    loss = net(data()[0]).sum() * float("inf")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert report(optimizer).multiplier == before


def test_steps_with_a_closure() -> None:
    net, optimizer = network(lr=1e-4)
    closure = closure_of(net, optimizer)
    for _ in range(40):
        optimizer.step(closure)
    assert report(optimizer).steps == 40 and report(optimizer).multiplier > 3


def test_compiled_steps_have_the_users_rate() -> None:
    def compiled() -> list[Tensor]:
        net, optimizer = network(lr=1e-4)
        step = torch.compile(optimizer.step, backend="eager")
        closure = closure_of(net, optimizer)
        for _ in range(12):
            closure()
            step()
        return weights(net)

    ours = compiled()
    ptac.disable("adaptive_lr")
    for a, b in zip(ours, compiled(), strict=True):
        assert torch.equal(a, b)


PROCESSES = """
import os, sys, torch, pai_torchacc as ptac
from torch import distributed, nn
nn.parallel.DistributedDataParallel  # imported once for both
torch.set_num_threads(1)
rank = int(os.fork() == 0)
distributed.init_process_group("gloo", f"file://{sys.argv[1]}", rank=rank, world_size=2)
if sys.argv[2] == "fused":
    assert ptac.enable()
if sys.argv[2] != "stock":
    assert ptac.enable_adaptive_lr()
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
torch.manual_seed(1 + rank)
for _ in range(20):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
reason = sys.argv[2] != "stock" and ptac.adaptive_lr_report(optimizer).reason
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    print([p.flatten().tolist() for p in net.parameters()], file=file)
    print(reason, file=file)
distributed.barrier()  # gloo may end a process whose peer has gone
distributed.destroy_process_group()
if rank == 0:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


@pytest.mark.parametrize("adaptive", ["alone"], indirect=True)
def test_several_processes_keep_the_users_rate(tmp_path: Path) -> None:
    """Their losses differ, and so would their weights."""

    def run(state: str) -> list[list[str]]:
        file = tmp_path / state
        switching.python(PROCESSES, str(file), state)
        return [Path(f"{file}.{rank}").read_text().splitlines() for rank in range(2)]

    [weights, _], _ = run("stock")
    for state in ("alone", "fused"):
        ours = run(state)
        assert ours[0] == ours[1]
        assert ours[0][0] == weights
        assert "several processes" in ours[0][1]


def test_shadow_checks_agree() -> None:
    ptac.enable("operator_fusion", verify=1)
    for cls in (optim.SGD, optim.AdamW):
        net, optimizer = network(cls, lr=1e-4)
        train(net, optimizer, 30)
        assert report(optimizer).multiplier > 1.5
    ops = json.loads(ptac.report("json"))["ops"]
    assert ops["sgd_step"]["failed"] == ops["adamw_step"]["failed"] == 0
    assert ops["sgd_step"]["accelerated"] >= 30
    assert "quarantine" not in ptac.report()
