"""Memory reuse together with everything else that looks at graphs and saved tensors."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import reusing
import torch
import torch.nn.functional as F
from reusing import SavesBoth
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

WIDE = 512


def same(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


def net(x: Tensor, w: Tensor) -> Tensor:
    """GELU to recompute, ReLU and a dropout to pack."""
    for _ in range(3):
        x = F.gelu(x @ w) @ w / 30
        x = F.dropout(F.relu(x @ w), 0.1) @ w / 30
    return x


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(WIDE, WIDE, requires_grad=True) for _ in range(2))
    return x, w


def gradients(loss: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
    loss.backward()
    return [x.grad, w.grad]


def both(run: Callable[[], list[Tensor]], mechanism: str | None = "recompute") -> None:
    """The same under reuse, which does something."""
    stock = run()
    with reusing.reused() as saved:
        ours = run()
        if mechanism:
            assert saved.times(mechanism)
    same(ours, stock)
    del stock, ours
    assert reusing.current_bytes() == 0


def test_partial_backward_after_another() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        v = torch.randn(WIDE, WIDE, requires_grad=True)
        h = F.gelu(x @ w)
        for _ in range(3):
            h = F.gelu(h @ w) / 30
        out = h @ v
        [first] = torch.autograd.grad(out.sum(), [v], retain_graph=True)
        [second] = torch.autograd.grad(out.square().sum(), [v])
        return [first, second]

    both(run)


def test_partial_backward_behind_a_freed_part() -> None:
    """The gradient of the last weight needs its input, whose maker has been freed."""

    def run() -> list[Tensor]:
        x, w = leaves()
        v = torch.randn(WIDE, WIDE, requires_grad=True)
        h = F.gelu(x @ w)
        out, other = F.relu(h @ v), h.sum()
        del h
        for _ in range(2):
            out = F.relu(out @ v / 30)
        grads = list(torch.autograd.grad(other, [x, w]))
        return grads + list(torch.autograd.grad(out.sum(), [v]))

    both(run)


def test_retained_graphs() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        loss = net(x, w).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second"):
            loss.backward()
        return [x.grad, w.grad]

    both(run)


def test_double_backward() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        grads = torch.autograd.grad(net(x, w).sum(), [x, w], create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        return [x.grad, w.grad]

    both(run)


def test_a_changed_input_of_something_recomputed_is_noticed() -> None:
    """Stock needs only the product here; what would be computed again has changed."""

    def run() -> list[Tensor]:
        x, w = leaves()
        v = torch.randn(WIDE, WIDE, requires_grad=True)
        h = x @ w
        out = F.gelu(h) @ v
        for _ in range(3):
            out = F.relu(out)
        with torch.no_grad():
            h.zero_()
        return list(torch.autograd.grad(out.sum(), [v]))

    both(run, None)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        y = net(x, w)
        y = checkpoint(net, y, w, use_reentrant=reentrant)
        return gradients(net(y, w).sum(), x, w)

    both(run)


def test_programs_own_hooks_win() -> None:
    seen: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        seen.append(t)
        return t

    with reusing.reused() as saved:
        x, w = leaves()
        with saved_tensors_hooks(pack, lambda t: t):
            out = net(x, w)
        assert saved.times() == 0
        assert len(seen) > 10
        assert all(isinstance(t, Tensor) for t in seen)
        out.sum().backward()
        net(x, w).sum().backward()
        assert saved.times()


def test_switching_inside_programs_own_hooks() -> None:
    top = torch._C._autograd._top_saved_tensors_default_hooks
    hooks = (lambda t: t, lambda t: t)
    with saved_tensors_hooks(*hooks):
        with reusing.reused():
            assert top(True)[0] is hooks[0]
        assert top(True)[0] is hooks[0]
    assert top(True) is None
    with reusing.reused():
        ours = top(True)
        with saved_tensors_hooks(*hooks):
            reusing.memory_reuse.remove(reusing.c)
            assert top(True)[0] is hooks[0]
        assert top(True) is None
        assert reusing.memory_reuse.install(reusing.c) is None
        assert top(True) == ours
    assert top(True) is None


def test_saving_on_the_cpu() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        with save_on_cpu():
            y = net(x, w)
        return gradients(net(y, w).sum(), x, w)

    both(run)


def small(x: Tensor) -> Tensor:
    return F.gelu(x).sin().sum()


TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "grad": torch.func.grad(small),
    "vjp": lambda x: torch.func.vjp(small, x)[1](torch.tensor(1.0))[0],
    "jvp": lambda x: torch.func.jvp(small, (x,), (x,))[1],
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    "hessian": lambda x: torch.func.hessian(small)(x[0]),
    "vmap": torch.func.vmap(small),
    "vmap of grad": torch.func.vmap(torch.func.grad(small)),
    "grad of grad": torch.func.grad(lambda y: torch.func.grad(small)(y).sum()),
    "jacobian": lambda x: torch.autograd.functional.jacobian(torch.sin, x[0]),
    "linearize": lambda x: torch.func.linearize(small, x)[1](x),
    "functional_call": lambda x: torch.func.functional_call(
        nn.Linear(4, 4, bias=False), {"weight": x[:, :4]}, (x[:, :4],)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    stock = TRANSFORMS[name](x)
    top = torch._C._autograd._top_saved_tensors_default_hooks
    with reusing.reused() as saved:
        ours = top(True)
        assert torch.equal(TRANSFORMS[name](x), stock)
        assert top(True) == ours, "they are back"
        a, w = leaves()
        net(a, w).sum().backward()
        assert saved.times()


def test_errors_in_transforms_bring_hooks_back() -> None:
    top = torch._C._autograd._top_saved_tensors_default_hooks

    def bad(x: Tensor) -> Tensor:
        raise KeyError

    with reusing.reused():
        ours = top(True)
        for transform in (torch.func.grad, torch.func.vmap, torch.func.jacrev):
            with pytest.raises(KeyError):
                transform(bad)(torch.ones(3))
            assert top(True) == ours
        hooks = (lambda t: t, lambda t: t)
        with (
            saved_tensors_hooks(*hooks),
            pytest.raises(RuntimeError, match="saved tensor hooks"),
        ):
            torch.func.grad(small)(torch.ones(3))
        assert top(True) == ours


def test_switched_off_within_a_transform() -> None:
    def turn_off(x: Tensor) -> Tensor:
        reusing.memory_reuse.remove(reusing.c)
        return x.sin().sum()

    with reusing.reused():
        torch.func.grad(turn_off)(torch.ones(3))
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_threads_that_start_later() -> None:
    def work(found: list[Any]) -> None:
        x, w = leaves()
        net(x, w).sum().backward()
        found.append(torch._C._autograd._top_saved_tensors_default_hooks(True))

    with reusing.reused() as saved:
        found: list[Any] = []
        threads = [threading.Thread(target=work, args=(found,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [hooks[0] for hooks in found] == [reusing.c.saved_pack] * 3
        assert saved.times()
    after: list[Any] = []
    thread = threading.Thread(target=work, args=(after,))
    thread.start()
    thread.join()
    assert after == [None]


def test_threads_hear_of_switching_off_when_they_next_save() -> None:
    go, ready = threading.Event(), threading.Event()
    found: list[Any] = []

    def work() -> None:
        x, w = leaves()
        y = net(x, w)
        ready.set()
        go.wait(60)
        y = net(y, w)
        found.append(torch._C._autograd._top_saved_tensors_default_hooks(True))
        y.sum().backward()
        found.append(x.grad)

    torch.manual_seed(1)
    with reusing.reused() as saved:
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait(60)
        assert saved.times()
    go.set()
    thread.join()
    assert found[0] is None
    assert found[1].isfinite().all()


def test_backward_in_another_thread() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        loss = net(x, w).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return [x.grad, w.grad]

    both(run)


def test_another_number_of_threads_in_backward() -> None:
    def run() -> list[Tensor]:
        x = torch.randn(WIDE + 1, WIDE + 3, generator=torch.manual_seed(0))
        w = torch.randn(WIDE + 3, WIDE + 3, generator=torch.manual_seed(1))
        x.requires_grad_()
        w.requires_grad_()
        torch.set_num_threads(2)
        y = x
        for _ in range(3):
            y = F.gelu(y @ w / 30)
        torch.set_num_threads(1)
        y.sum().backward()
        assert torch.get_num_threads() == 1
        return [x.grad, w.grad]

    before = torch.get_num_threads()
    try:
        both(run)
    finally:
        torch.set_num_threads(before)


def test_functions_of_programs() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        y = SavesBoth.apply(F.softplus(x @ w))
        for _ in range(3):
            y = SavesBoth.apply(F.softplus(y @ w / 500)) + 1
        return gradients(y.sum(), x, w)

    both(run)


def test_autocast() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        with torch.autocast("cpu"):
            y = net(x, w)
        y.float().sum().backward()
        return [x.grad, w.grad]

    both(run, None)


def test_backward_under_autocast() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        y = net(x, w)
        with torch.autocast("cpu"):
            return gradients(y.sum(), x, w)

    both(run)


def test_inference_mode_and_no_grad() -> None:
    with reusing.reused() as saved:
        x, w = leaves()
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                net(x, w)
        assert saved.times() == 0
        with torch.inference_mode():
            frozen = torch.randn(WIDE, WIDE)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            x * frozen


def test_tracing_and_scripting() -> None:
    def run() -> list[Tensor]:
        x, w = leaves()
        traced = torch.jit.trace(lambda a, b: F.gelu(a @ b).relu(), (x, w))
        y = traced(x, w)
        for _ in range(2):
            y = traced(y / 30, w)
        return gradients(y.sum(), x, w)

    both(run, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions(backend: str) -> None:
    def run() -> list[Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(lambda a, b: F.gelu(a @ b).relu(), backend=backend)
        x, w = leaves()
        y = compiled(x, w)
        for _ in range(3):
            y = compiled(F.silu(y @ w) / 300, w)
        return gradients(y.sum(), x, w)

    both(run, None)


def test_models_are_copied() -> None:
    with reusing.reused():
        model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE))
        x = torch.randn(WIDE, WIDE)
        out = model(x)
        copied = copy.deepcopy(model)
        out.sum().backward()
        same([p.detach() for p in copied.parameters()], [*model.parameters()])


def test_anomaly_mode_and_modes_in_backward() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def run() -> list[Tensor]:
        x, w = leaves()
        torch.manual_seed(1)
        y = net(x, w)
        with FlopCounterMode(display=False) as flops, torch.autograd.detect_anomaly():
            y.sum().backward()
        return [x.grad, w.grad, torch.tensor(flops.get_total_flops())]

    with pytest.warns(UserWarning, match="Anomaly"):
        both(run)
