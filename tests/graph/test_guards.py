"""Whatever changes between two calls shows in the next one."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planning import by_plan, close, counts, eagerly, planned_of, reasons, twin, warm
from switching import accelerated
from torch import Tensor, nn

import pai_torchacc as ptac


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5))
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x))) * self.scale


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    net = Net().eval()
    net.norm.running_mean.normal_()
    return net


X = torch.linspace(-1, 1, 40).view(5, 8)


def _replace_parameter(net: Any) -> None:
    net.head.weight = nn.Parameter(torch.randn(4, 16))


def _write_in_place(net: Any) -> None:
    with torch.no_grad():
        net.head.weight.mul_(2)


def _write_by_data(net: Any) -> None:
    net.head.weight.data.mul_(2)


def _write_by_numpy(net: Any) -> None:
    net.head.weight.detach().numpy()[:] = 1


def _swap_data(net: Any) -> None:
    net.head.weight.data = torch.randn(4, 16)


def _swap_data_of_another_layout(net: Any) -> None:
    net.head.weight.data = torch.randn(16, 4).t()


def _replace_buffer(net: Any) -> None:
    net.scale = torch.full((4,), 3.0)


def _write_statistics(net: Any) -> None:
    net.norm.running_mean.add_(1)
    net.norm.running_var.mul_(2)


def _load(net: Any) -> None:
    net.load_state_dict(Net().state_dict())


def _replace_child(net: Any) -> None:
    net.head = nn.Linear(16, 3, bias=False)
    net.register_buffer("scale", torch.ones(3))


def _replace_activation(net: Any) -> None:
    net.body[1] = nn.Tanh()


def _add_child(net: Any) -> None:
    net.body.append(nn.Tanh())


def _remove_bias(net: Any) -> None:
    net.head.bias = None


def _tie(net: Any) -> None:
    net.norm.weight = net.norm.bias


def _patch_forward(net: Any) -> None:
    net.head.forward = lambda x: x[:, :4]


def _patch_own_forward(net: Any) -> None:
    net.forward = lambda x: x + 1


CHANGES = {
    change.__name__.strip("_"): change
    for change in (
        *(_replace_parameter, _write_in_place, _write_by_data, _write_by_numpy),
        *(_swap_data, _swap_data_of_another_layout, _replace_buffer),
        *(_write_statistics, _load, _replace_child, _replace_activation, _add_child),
        *(_remove_bias, _tie, _patch_forward, _patch_own_forward),
    )
}


@pytest.mark.parametrize("with_kernels", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_module_show(net: Any, change: str, with_kernels: bool) -> None:
    if with_kernels:
        ptac.enable("operator_fusion")
    warm(net, X)
    before = net(X)
    torch.manual_seed(7)
    CHANGES[change](net)
    with torch.no_grad():
        expected = net._call_impl(X)
        for _ in range(3):
            ours = net(X)
            close(ours, expected)
            assert ours.stride() == expected.stride()
    assert expected.shape != before.shape or not torch.equal(expected, before)


def test_a_class_whose_forward_is_replaced(net: Any, monkeypatch: Any) -> None:
    warm(net, X)
    monkeypatch.setattr(nn.BatchNorm1d, "forward", lambda self, x: x)
    with torch.no_grad():
        close(net(X), net._call_impl(X))


@pytest.mark.parametrize("where", ["root", "child"])
@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook"]
)
def test_hooks_run(net: Any, where: str, register: str) -> None:
    warm(net, X)
    module = net if where == "root" else net.head
    calls: list[None] = []
    handle = getattr(module, register)(lambda *_: calls.append(None))
    with torch.no_grad():
        for i in range(3):
            eagerly(net, lambda: net(X))
            assert len(calls) == i + 1
    handle.remove()
    with torch.no_grad():
        net(X)
        net(X)
    by_plan(net, lambda: net(X))


def test_hooks_of_all_modules_run(net: Any) -> None:
    warm(net, X)
    calls: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: calls.append(module)
    )
    with handle, torch.no_grad():
        eagerly(net, lambda: net(X))
    assert net in calls
    assert net.head in calls


def test_training_and_back(net: Any) -> None:
    warm(net, X)
    mean = net.norm.running_mean.clone()
    net.train()
    with torch.no_grad():
        eagerly(net, lambda: net(X))
    assert not torch.equal(net.norm.running_mean, mean)
    net.eval()
    with torch.no_grad():
        net(X)
        net(X)
        close(by_plan(net, lambda: net(X)), net._call_impl(X))


def test_a_flag_of_a_child(net: Any) -> None:
    warm(net, X)
    net.body[2].train()
    with torch.no_grad():
        torch.manual_seed(3)
        ours = net(X)
        torch.manual_seed(3)
        close(ours, net._call_impl(X))


GEOMETRIES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x[:3],
    "strides": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: torch.stack((x, x), -1)[..., 0],
    "offset": lambda x: torch.cat((x, x))[5:],
    "expanded": lambda x: x[:1].expand(5, 8),
    "reversed": lambda x: x.flip(0),
    "no rows": lambda x: x[:0],
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_other_inputs(net: Any, geometry: str) -> None:
    ptac.enable("operator_fusion")
    warm(net, X)
    x = GEOMETRIES[geometry](X)
    other = twin(net)
    with torch.no_grad():
        for _ in range(3):
            ours, expected = net(x), other(x)
            close(ours, expected)
            assert ours.stride() == expected.stride()


def test_a_dtype(net: Any) -> None:
    warm(net, X)
    with torch.no_grad():
        expected = net(X)
        net.double()
        for _ in range(3):
            assert net(X.double()).dtype is torch.float64
        close(net(X.double()).float(), expected)


def test_a_subclass_of_tensors(net: Any) -> None:
    class Mine(Tensor):
        pass

    warm(net, X)
    with torch.no_grad():
        assert type(eagerly(net, lambda: net(X.as_subclass(Mine)))) is Mine


def test_at_most_so_many_plans(net: Any) -> None:
    ptac.optimize(net)
    with torch.no_grad():
        for n in range(1, 12):
            for _ in range(2):
                close(net(X[:1].expand(n, 8)), twin(net)(X[:1].expand(n, 8)))
    assert counts(net)[0] == 8


def test_gradients_come_as_ever(net: Any) -> None:
    warm(net, X)
    other = twin(net)
    eagerly(net, lambda: net(X)).sum().backward()
    other(X).sum().backward()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        close(mine.grad, theirs.grad)


def test_a_gradient_of_the_input(net: Any) -> None:
    net.requires_grad_(False)
    ptac.optimize(net)
    for _ in range(3):  # with grad mode on, and nothing to learn
        assert not net(X).requires_grad
    assert counts(net) == (1, 2)
    x = X.clone().requires_grad_()
    eagerly(net, lambda: net(x)).sum().backward()
    assert x.grad is not None
    net.head.weight.requires_grad_()
    assert eagerly(net, lambda: net(X)).requires_grad


def test_inference_mode(net: Any) -> None:
    warm(net, X)
    with torch.inference_mode():
        y = net(X)
        assert y.is_inference()
        close(y, net._call_impl(X))
    assert counts(net) == (1, 2)
    assert not by_plan(net, lambda: net(X)).is_inference()


def _profiled(net: Any) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        net(X)
    return [event.key for event in p.key_averages()]


def test_the_profiler_sees_torchs_operators(net: Any) -> None:
    warm(net, X)
    with torch.no_grad():
        assert "aten::addmm" in eagerly(net, lambda: _profiled(net))


def test_autocast(net: Any) -> None:
    warm(net, X)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        close(eagerly(net, lambda: net(X)), twin(net)(X))


def test_transforms(net: Any) -> None:
    warm(net, X)
    with torch.no_grad():
        mapped = eagerly(net, lambda: torch.func.vmap(net, randomness="same")(X[None]))
        close(mapped[0], net._call_impl(X))
    jacobian = eagerly(net, lambda: torch.func.jacrev(net)(X[:1]))
    assert jacobian.shape == (1, 4, 1, 8)
    traced = torch.jit.trace(net, X)
    close(traced(X), net._call_impl(X))
    exported = torch.export.export(net, (X,)).module()
    close(exported(X), net._call_impl(X))


def test_checkpoints(net: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    warm(net, X)
    x = X.clone().requires_grad_()
    eagerly(net, lambda: checkpoint(net, x, use_reentrant=False)).sum().backward()
    assert x.grad is not None


def test_copies_are_not_optimized(net: Any) -> None:
    warm(net, X)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    copies = [
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        torch.load(file, weights_only=False),
    ]
    expected = by_plan(net, lambda: net(X))
    for other in copies:
        assert type(other) is Net
        assert other._compiled_call_impl is None
        with torch.no_grad():
            close(other(X), expected)
    assert list(net.state_dict()) == list(Net().state_dict())


def test_the_switch(net: Any) -> None:
    warm(net, X)
    expected = by_plan(net, lambda: net(X))
    with torch.no_grad():
        with ptac.disabled():
            eagerly(net, lambda: net(X))
        ptac.disable("graph_optimization")
        assert not ptac.is_enabled("graph_optimization")
        close(eagerly(net, lambda: net(X)), expected)
        ptac.enable_graph_optimization()
        net(X)  # nn.Module has changed, by which calls of unedited modules are met
        by_plan(net, lambda: net(X))
        ptac.disable()
        close(eagerly(net, lambda: net(X)), expected)


def test_kernels_follow_their_switch(net: Any) -> None:
    conv = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()).eval()
    x = torch.randn(1, 16, 12, 12)
    warm(conv, x)
    ((_, lowered),) = planned_of(conv).plans()
    assert [step.kind for step in lowered.steps] == ["call", "call"]
    with accelerated(), torch.no_grad():
        conv(x)
        by_plan(conv, lambda: conv(x))
        ((_, lowered),) = planned_of(conv).plans()
        assert [step.kind for step in lowered.steps] == ["conv"]
    with torch.no_grad():
        conv(x)
    by_plan(conv, lambda: conv(x))
    ((_, lowered),) = planned_of(conv).plans()
    assert [step.kind for step in lowered.steps] == ["call", "call"]


def test_threads_of_torch(net: Any) -> None:
    warm(net, X)
    n = torch.get_num_threads()
    torch.set_num_threads(n + 1)
    try:
        with torch.no_grad():
            eagerly(net, lambda: net(X))
        by_plan(net, lambda: net(X))
    finally:
        torch.set_num_threads(n)


def test_unoptimize(net: Any) -> None:
    ptac.optimize(net)
    ptac.unoptimize(net)
    assert net._compiled_call_impl is None
    with pytest.raises(ValueError, match="not optimized"):
        ptac.unoptimize(net)


def test_optimizing_twice_is_once(net: Any) -> None:
    assert ptac.optimize(ptac.optimize(net)) is net
    with torch.no_grad():
        for _ in range(3):
            close(net(X), net._call_impl(X))
    assert counts(net) == (1, 2)


def test_an_optimized_part_of_an_optimized_module(net: Any) -> None:
    ptac.optimize(net.body)
    warm(net, X)
    assert not reasons(net)
    close(by_plan(net, lambda: net(X)), twin(net)(X))
    with torch.no_grad():
        net.body(X)
    by_plan(net.body, lambda: net.body(X))


def test_wrong_use(net: Any) -> None:
    with pytest.raises(TypeError, match="a module or a function"):
        ptac.optimize(3)
    with pytest.raises(ValueError, match="on_refusal"):
        ptac.optimize(net, on_refusal="never")
    warm(net, X)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes"):
        net(torch.randn(2, 9))
    with pytest.raises(TypeError):
        net()
    by_plan(net, lambda: net(X))


def test_functions() -> None:
    weight = torch.randn(8, 8)

    @ptac.optimize(on_refusal="raise")
    def function(x: Tensor, *, twice: bool = False, more: list[Tensor]) -> Any:
        """Words."""
        y = F.gelu(x @ weight.t())
        return {"y": 2 * y if twice else y, "sum": sum(more), "n": len(more)}

    assert function.__name__ == "function"
    assert function.__doc__ == "Words."
    for i in range(4):
        found = function(X + i, twice=i > 1, more=[X, X + 1])
        y = F.gelu((X + i) @ weight.t())
        close(found["y"], 2 * y if i > 1 else y)
        close(found["sum"], 2 * X + 1)
        assert found["n"] == 2
    assert counts(function) == (2, 2)
    weight.zero_()
    assert function(X, more=[X + 1])["y"].abs().max() == 0
