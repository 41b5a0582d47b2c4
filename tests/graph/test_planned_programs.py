"""Small programs that a plan could get wrong: each call gives what an eager one does.

Some are planned and some are refused; what counts is the result.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planning import close, counts, planned_of, reasons
from switching import accelerated
from torch import Tensor, nn

import pai_torchacc as ptac


def _result_read_by_elementwise(x: Tensor) -> Any:
    y = x.exp() + 1
    return y, torch.tanh(y)


def _result_on_another(x: Tensor) -> Any:
    t = x + 1
    y = torch.relu(t)
    z = y * 2
    return y, z


def _transposed_in_place(x: Tensor) -> Any:
    w = torch.relu(x + 1)
    y = w[1:]
    y.t_()
    return y @ w[1:], w


def _unsqueezed_in_place(x: Tensor) -> Any:
    w = torch.relu(x + 1)
    y = w[1:]
    y.unsqueeze_(0)
    w[0] = 5
    return y, w


def _squeezed_in_place(x: Tensor) -> Any:
    y = torch.softmax(x[:1], 0)
    y.squeeze_(0)
    return torch.softmax(x * 3, 0), y


def _constant_transposed(x: Tensor) -> Any:
    z = torch.zeros(2, 3)
    z.t_()
    return z, x + 1


def _signs_of_zero(x: Tensor) -> Any:
    return torch.copysign(x, 0.0) + 2 * torch.copysign(x, -0.0), x / 0.0, x / -0.0


def _overlapping(x: Tensor) -> Any:
    y = x + 0
    y[:, 1:].copy_(y[:, :-1])
    return y


def _scalar_first(x: Tensor) -> Any:
    return torch.add(2, x), torch.mul(2, x + 1), torch.sub(2, x + 1), 1 / (x + 3)


def _of_numpy(x: Tensor) -> Any:
    y = x + 1
    y.numpy()[:] = 0
    return y + x


def _made_of_tensors(x: Tensor) -> Any:
    return torch.tensor([x.sum(), x.mean()]) * 2, x * x.tolist()[0][0]


def _split_by_a_tensor(x: Tensor) -> Any:
    return torch.tensor_split(x, torch.tensor([1]))[0] * 2


def _other_dtypes(x: Tensor) -> Any:
    y = torch.zeros(3).add_(torch.ones(3, dtype=torch.float64))
    z = (x + 1).pow_(2) * 3
    return y, z, (x > 0).to(torch.uint16), torch.zeros(3).eq_(torch.ones(3))


def _gradient_inside(x: Tensor) -> Any:
    with torch.enable_grad():
        return (x * WEIGHT).sum().requires_grad


def _parameter_made(x: Tensor) -> Any:
    return nn.Parameter(x * 2)


def _given_twice(x: Tensor) -> Any:
    return x, x.detach(), x + 1


def _padded(x: Tensor) -> Any:
    return F.pad(x, (1, 2, 0, 1), value=3), F.pad(x[None], (1, 1), "circular")


def _selected(x: Tensor) -> Any:
    index = torch.tensor([1, 0])
    return x.index_select(0, index), x.gather(0, index[:, None]), x[index, :]


def _asserted(x: Tensor) -> Any:
    torch._assert_async(torch.ones(()))
    return x + 1


def _inverse(x: Tensor) -> Any:
    return torch.linalg.inv(x[:3, :3] + 4 * torch.eye(3))


def _nothing(x: Tensor) -> Any:
    CALLS.append(x + 1)


def _appended(x: Tensor) -> Any:
    CALLS.append(x + 1)
    return x + 2


def _default_dtype(x: Tensor) -> Any:
    return torch.ones(8) + 1, x + 1


def _as_strided(x: Tensor) -> Any:
    return x.as_strided((2,), (1,), 0) * 1


def _one_of_a_list(x: Tensor) -> Any:
    return torch._foreach_add([x], 1)[0] + 1


def _in_two_chunks(x: Tensor) -> Any:
    a, b = x.chunk(2)
    a = a.clone()
    a[0].zero_()
    return a + b, torch.cat([a, b]), torch.stack([b, a]).sum(0)


WEIGHT = torch.ones(4, 6, requires_grad=True)
CALLS: list[Tensor] = []

PROGRAMS = {
    program.__name__.strip("_"): program
    for program in (
        *(_result_read_by_elementwise, _result_on_another, _transposed_in_place),
        *(_unsqueezed_in_place, _squeezed_in_place, _constant_transposed),
        *(_signs_of_zero, _overlapping, _scalar_first, _of_numpy, _made_of_tensors),
        *(_split_by_a_tensor, _other_dtypes, _gradient_inside, _parameter_made),
        *(_given_twice, _padded, _selected, _asserted, _inverse, _nothing),
        *(_appended, _default_dtype, _as_strided, _one_of_a_list, _in_two_chunks),
    )
}


def _same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, Tensor):
        assert ours.requires_grad == theirs.requires_grad
        if theirs.is_floating_point():
            assert torch.equal(ours.signbit(), theirs.signbit())
    elif isinstance(theirs, tuple):
        for mine, other in zip(ours, theirs, strict=True):
            _same(mine, other)
        return
    if theirs is not None:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, mode: Callable[[], Any]) -> None:
    program = PROGRAMS[name]
    optimized = ptac.optimize(program, on_refusal="ignore")
    with accelerated(), mode():
        for seed in range(5):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
            CALLS.clear()
            ours = optimized(x.clone())
            assert len(CALLS) == (program in (_nothing, _appended))
            _same(ours, program(x.clone()))
            torch.rand(1)


class Numbered(nn.Module):
    """What it computes depends on a number and a function that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.helper = 2.0, torch.sin

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x) * self.factor


def test_attributes_may_change() -> None:
    module: Any = nn.Sequential(Numbered(), nn.LayerNorm(8)).eval()
    x = torch.randn(3, 8)
    ptac.optimize(module, on_refusal="raise")

    def check() -> None:
        with torch.no_grad():
            for _ in range(3):
                close(module(x), module._call_impl(x))

    check()
    module[0].factor = 3.0
    check()
    module[0].helper = torch.cos
    check()
    module[1].eps = 0.5
    check()
    del module[0].factor
    with pytest.raises(AttributeError, match="factor"), torch.no_grad():
        module(x)
    assert counts(module)[1] == 4 * 2


def test_a_generator_that_is_seeded() -> None:
    def function(x: Tensor) -> Tensor:
        torch.default_generator.manual_seed(3)
        return x + torch.rand(3)

    optimized = ptac.optimize(function, on_refusal="ignore")
    for _ in range(3):
        close(optimized(torch.ones(3)), function(torch.ones(3)))
        torch.rand(2)


def test_default_dtypes_may_change() -> None:
    optimized = ptac.optimize(_default_dtype, on_refusal="raise")
    x = torch.ones(4, 6)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            for _ in range(2):
                assert optimized(x)[0].dtype is dtype
        finally:
            torch.set_default_dtype(torch.float32)


def test_numbers_that_are_equal_and_differ() -> None:
    optimized = ptac.optimize(torch.copysign, on_refusal="raise")
    x = torch.ones(3)
    for s in (0.0, 0.0, -0.0, 1, True, 1.0, float("nan"), float("nan")):
        for _ in range(2):
            close(optimized(x, s), torch.copysign(x, s))


def test_kinds_of_calls_in_turn() -> None:
    optimized = ptac.optimize(lambda x: torch.relu(x + 1), on_refusal="raise")
    for i in range(20):
        x = torch.randn(4 + i % 2)
        close(optimized(x), torch.relu(x + 1))
    assert counts(optimized) == (2, 18)
    assert planned_of(optimized).counts()["given_back"] == 0


# --- modules that change themselves, or are changed in unusual ways


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(8))
        self.linear = nn.Linear(8, 8)
        self.kept = [torch.zeros(8)]
        self.extra: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.n + self.kept[0]


class SetsBuffer(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n * 0.5 + x.mean(0)
        return self.linear(x) + self.n


class SetsBufferTwice(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1.0
        self.n = self.n + 1.0
        return self.linear(x) + self.n


class SetsData(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data = self.linear.weight.data * 1.1
        return self.linear(x)


class SetsItem(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[0] = self.kept[0] + 1
        return self.linear(x) + self.kept[0]


class SetsGradient(Buffered):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            self.linear(x).sum().backward()
        return x + self.linear.weight.grad[0]


CLASSES = (SetsBuffer, SetsBufferTwice, SetsData, SetsItem, SetsGradient)


@pytest.mark.parametrize("kind", CLASSES)
def test_modules_that_change_themselves(kind: type[nn.Module]) -> None:
    module = kind().eval()
    other = copy.deepcopy(module)
    ptac.optimize(module, on_refusal="ignore")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 8)
            close(module(x), other(x))
    assert counts(module) == (0, 0)


def _untie(module: Any) -> None:
    module.linear.weight = nn.Parameter(torch.randn(8, 8))


def _add_bias(module: Any) -> None:
    module.linear.bias = nn.Parameter(torch.randn(8))


def _tie(module: Any) -> None:
    module.second.weight = module.linear.weight


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.second.weight = self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.linear(x))


@pytest.mark.parametrize("change", [_untie, _add_bias, _tie])
def test_tied_weights(change: Callable[[Any], None]) -> None:
    module = Tied().eval()
    x = torch.randn(3, 8)
    ptac.optimize(module, on_refusal="raise")
    with torch.no_grad():
        for _ in range(3):
            close(module(x), module._call_impl(x))
        assert counts(module) == (1, 2)
        change(module)
        for _ in range(3):
            close(module(x), module._call_impl(x))
        module.second.weight = nn.Parameter(torch.randn(8, 8))
        for _ in range(3):
            close(module(x), module._call_impl(x))


def test_parameters_in_one_storage() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    nn.utils.vector_to_parameters(torch.randn(144), module.parameters())
    x = torch.randn(3, 8)
    ptac.optimize(module, on_refusal="ignore")
    with torch.no_grad():
        for i in range(6):
            close(module(x), module._call_impl(x))
            if i == 3:
                module[0].weight = nn.Parameter(torch.randn(8, 8))


def test_a_view_of_a_weight_that_is_kept() -> None:
    module: Any = Buffered().eval()
    module.kept = [module.linear.weight.detach()[0]]
    x = torch.randn(3, 8)
    ptac.optimize(module, on_refusal="ignore")
    with torch.no_grad():
        for i in range(6):
            close(module(x), module._call_impl(x))
            if i == 3:
                module.linear.weight = nn.Parameter(torch.randn(8, 8))


def test_a_hooks_effect_ends_with_it() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    x = torch.randn(4, 8)
    ptac.optimize(module, on_refusal="ignore")
    with torch.no_grad():
        expected = module(x)
        with module[0].register_forward_hook(lambda *args: args[2] * 2):
            for _ in range(3):
                close(module(x), 2 * expected)
        for _ in range(3):
            close(module(x), expected)
    assert counts(module)[1] >= 1
    assert "a module has hooks, or a class that changes" in reasons(module)


def test_paddings_of_an_encoder() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    module = nn.TransformerEncoder(layer, 2).eval()
    other = copy.deepcopy(module)
    ptac.optimize(module, on_refusal="ignore")
    x = torch.randn(2, 5, 16)
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    with torch.no_grad():
        for _ in range(3):
            ours, theirs = (m(x, src_key_padding_mask=mask) for m in (module, other))
            close(ours, theirs)


def test_odd_tensors_of_modules() -> None:
    module = nn.Sequential(nn.Linear(8, 8)).eval()
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    ptac.optimize(module, on_refusal="raise")
    with torch.no_grad():
        for _ in range(3):
            module(torch.ones(2, 8))
    assert counts(module) == (1, 2)


def test_lazy_modules() -> None:
    module = ptac.optimize(nn.Sequential(nn.LazyLinear(4)).eval(), on_refusal="ignore")
    x = torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(4):
            close(module(x), module._call_impl(x))


def test_nested_tensors() -> None:
    def function(x: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor([x[0], x[1, :3]])
        return torch.nested.to_padded_tensor(nested, 0.0)

    optimized = ptac.optimize(function, on_refusal="ignore")
    for _ in range(3):
        close(optimized(torch.ones(4, 6)), function(torch.ones(4, 6)))


def test_operators_that_take_functions() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(torch.ones(()) > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    optimized = ptac.optimize(function, on_refusal="ignore")
    with torch.no_grad():
        for _ in range(3):
            close(optimized(torch.ones(3)), torch.full((3,), 2.0))


def test_what_is_no_module_of_ours() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    for wrong in (scripted, int, "text"):
        with pytest.raises(TypeError):
            ptac.optimize(wrong)
    module = nn.Linear(3, 3)
    module.compile(backend="eager")
    with pytest.raises(ValueError, match="is compiled"):
        ptac.optimize(module)
    with pytest.raises(ValueError, match="not optimized"):
        ptac.unoptimize(5)


def test_a_scripted_part() -> None:
    module = nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.ReLU()).eval()
    x = torch.randn(2, 3)
    ptac.optimize(module, on_refusal="ignore")
    with torch.no_grad():
        for _ in range(4):
            close(module(x), module._call_impl(x))


def test_modules_in_a_closure() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.9)).eval()
    optimized = ptac.optimize(lambda x: module(x) + 0, on_refusal="ignore")
    x = torch.randn(3, 8)
    with torch.no_grad():
        for i in range(6):
            close(optimized(x), module(x) + 0)
            if i == 2:
                module[0].weight = nn.Parameter(torch.randn(8, 8))
        assert counts(optimized)[1] > 2
        module.train()
        torch.manual_seed(0)
        ours = optimized(x)
        torch.manual_seed(0)
        close(ours, module(x) + 0)


# --- threads


def test_a_forward_that_waits_for_another_thread() -> None:
    inner = ptac.optimize(nn.Linear(4, 4).eval(), on_refusal="ignore")
    pool = ThreadPoolExecutor(1)

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            return inner(x)

    outer = ptac.optimize(
        lambda x: pool.submit(call, x).result(timeout=20) + 1, on_refusal="ignore"
    )
    x = torch.ones(2, 4)
    for _ in range(3):
        close(outer(x), call(x) + 1)
    pool.shutdown()


def test_two_recordings_at_once() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def function(x: Tensor) -> Tensor:
        barrier.wait()
        return x + 1

    optimized = [ptac.optimize(function, on_refusal="ignore") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda f: f(torch.ones(3)), optimized):
            close(result, torch.full((3,), 2.0))


def test_refused_calls_keep_no_tensor() -> None:
    import gc
    import weakref

    optimized = ptac.optimize(lambda x: x * float(x[0]), on_refusal="ignore")
    gone = []
    for n in range(1, 100):
        x = torch.ones(n)
        gone.append(weakref.ref(x))
        optimized(x)
    del x
    gc.collect()
    assert not any(reference() is not None for reference in gone)
