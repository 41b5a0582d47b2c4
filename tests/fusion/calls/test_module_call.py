"""nn.Module.__call__ in C: what calls a module sees, and who sees the call."""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from calling import (
    IMAGES,
    ROWS,
    SIGNALS,
    STOCK,
    Block,
    hold_while_toggled,
    n_leaves,
    network,
    on,
)
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C, _host


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    assert vars(nn.Module)["__call__"] is STOCK


LEAVES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 5), ROWS),
    "linear without bias": (lambda: nn.Linear(4, 5, bias=False), ROWS),
    "linear of one row": (lambda: nn.Linear(4, 5), (4,)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), SIGNALS),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMAGES),
    "conv2d, same": (lambda: nn.Conv2d(4, 6, 3, padding="same", groups=2), IMAGES),
    "layer norm": (lambda: nn.LayerNorm(4), ROWS),
    "layer norm, bare": (lambda: nn.LayerNorm(4, elementwise_affine=False), ROWS),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGES),
    "avg pool": (lambda: nn.AvgPool2d(2, divisor_override=3), IMAGES),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d((1, 1)), IMAGES),
    "adaptive pool, int": (lambda: nn.AdaptiveAvgPool2d(2), IMAGES),
    "softmax": (lambda: nn.Softmax(1), ROWS),
    "log softmax": (lambda: nn.LogSoftmax(-1), ROWS),
    "relu": (nn.ReLU, ROWS),
    "leaky relu": (lambda: nn.LeakyReLU(0.3), ROWS),
    "elu": (lambda: nn.ELU(0.7), ROWS),
    "silu": (nn.SiLU, ROWS),
    "hardswish": (nn.Hardswish, ROWS),
    "hardsigmoid": (nn.Hardsigmoid, ROWS),
    "gelu": (nn.GELU, ROWS),
    "gelu, tanh": (lambda: nn.GELU("tanh"), ROWS),
    "tanh": (nn.Tanh, ROWS),
    "sigmoid": (nn.Sigmoid, ROWS),
    "flatten": (nn.Flatten, IMAGES),
    "flatten, some": (lambda: nn.Flatten(2, -1), IMAGES),
    "identity": (nn.Identity, ROWS),
    "batch norm": (lambda: nn.BatchNorm1d(4), ROWS),
    "batch norm of signals": (lambda: nn.BatchNorm1d(4), SIGNALS),
    "batch norm of images": (lambda: nn.BatchNorm2d(4, momentum=0.3), IMAGES),
    "batch norm of volumes": (lambda: nn.BatchNorm3d(4), (2, 4, 3, 3, 3)),
    "batch norm in eval mode": (lambda: nn.BatchNorm2d(4).eval(), IMAGES),
    "batch norm, bare": (lambda: nn.BatchNorm2d(4, affine=False), IMAGES),
    "dropout in eval mode": (lambda: nn.Dropout().eval(), ROWS),
    "dropout of nothing": (lambda: nn.Dropout(0.0), ROWS),
}
OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu in place": (lambda: nn.ReLU(inplace=True), ROWS),
    "elu in place": (lambda: nn.ELU(inplace=True), ROWS),
    "conv2d, reflected": (
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        IMAGES,
    ),
    "softmax without dim": (nn.Softmax, ROWS),
    "adaptive pool, half": (lambda: nn.AdaptiveAvgPool2d((2, None)), IMAGES),
    "max pool with indices": (lambda: nn.MaxPool2d(2, return_indices=True), IMAGES),
    "dropout": (nn.Dropout, ROWS),
    "batch norm of all batches": (lambda: nn.BatchNorm2d(4, momentum=None), IMAGES),
    "batch norm without statistics": (
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        IMAGES,
    ),
    "batch norm by an int": (lambda: nn.BatchNorm2d(4, eps=1), IMAGES),
    "group norm": (lambda: nn.GroupNorm(2, 4), ROWS),
}


def results(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> list[Tensor]:
    """Outputs with and without a gradient, and gradients."""
    torch.manual_seed(3)
    net, x = make(), torch.randn(shape)
    found: list[Tensor] = []
    with torch.no_grad(), torch.random.fork_rng():
        found += _all(net(x.clone()))
    leaf = x.clone().requires_grad_()
    outputs = [y for y in _all(net(leaf * 1)) if y.is_floating_point()]
    sum(y.square().sum() for y in outputs).backward()
    grads = [leaf.grad, *(p.grad for p in net.parameters())]
    return [*found, *outputs, *grads, *net.buffers()]


def _all(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def assert_same_bits(a: list[Tensor], b: list[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        bits = [t.reshape(-1).contiguous().view(torch.uint8) for t in (x, y)]
        assert torch.equal(*bits)
        assert x.stride() == y.stride()


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_gives_what_its_forward_gives(name: str) -> None:
    make, shape = LEAVES[name]
    stock = results(make, shape)
    with on():
        before = _C.leaves_called()
        ours = results(make, shape)
        assert _C.leaves_called() - before == 2
    assert_same_bits(ours, stock)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_leaf_is_called(name: str) -> None:
    make, shape = OTHERS[name]
    stock = results(make, shape)
    with on():
        before = _C.leaves_called()
        ours = results(make, shape)
        assert _C.leaves_called() == before
    assert_same_bits(ours, stock)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.BatchNorm1d(4), (1, 4)),
        (nn.BatchNorm2d(4), (1, 4, 1, 1)),
        (nn.BatchNorm1d(4), (2, 4, 3, 3)),
        (nn.BatchNorm2d(4), (2, 4, 3)),
        (nn.BatchNorm3d(4), (2, 4, 3, 3)),
        (nn.BatchNorm2d(4), (2, 3, 3, 3)),
        (nn.BatchNorm2d(4, eps=-1.0), (2, 4, 3, 3)),
    ],
)
def test_errors_of_batch_norm(net: nn.Module, shape: tuple[int, ...]) -> None:
    def program() -> Any:
        before = int(net.num_batches_tracked)
        try:
            net(torch.ones(shape))
        except Exception as error:
            counted = int(net.num_batches_tracked) - before
            return type(error), str(error), counted
        return None

    stock = program()
    assert stock is not None
    with on():
        assert program() == stock


def test_torchs_function_is_what_everybody_sees() -> None:
    net = nn.ReLU()
    with on():
        assert nn.Module.__call__ is STOCK
        assert nn.Linear.__call__ is STOCK
        assert net.__call__.__func__ is STOCK
        assert net.__call__.__self__ is net
        assert inspect.signature(nn.Module.__call__) == inspect.signature(STOCK)
        assert inspect.signature(nn.Linear.forward).parameters.keys() == {
            "self",
            "input",
        }
        assert vars(nn.Module)["__call__"] is not STOCK
        assert torch.equal(net.__call__(torch.ones(2)), torch.ones(2))
    assert vars(nn.Module)["__call__"] is STOCK


@pytest.mark.parametrize("net", [nn.ReLU, Block, lambda: nn.Sequential(nn.ReLU())])
def test_arguments_as_python_passes_them(net: Callable[[], nn.Module]) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        module, x = net(), torch.randn(2, 4)
        found: list[Any] = []
        for args, keywords in (
            ((x,), {}),
            ((), {"x": x}),
            ((), {"input": x}),
            ((x, 2.0), {"shift": 1.0}),
            ((), {}),
            ((x, x, x, x), {}),
            (("no tensor",), {}),
            ((None,), {}),
        ):
            try:
                found.append(module(*args, **keywords).tolist())
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    stock = program()
    with on():
        assert program() == stock


def test_traceback_ends_in_the_program() -> None:
    def program() -> list[str]:
        try:
            Block()(torch.ones(2, 5))
        except RuntimeError as error:
            frames = traceback.extract_tb(error.__traceback__)
            return [f.name for f in frames if f.filename == __file__]
        raise AssertionError

    stock = program()
    with on():
        assert program() == stock


def _hooked(net: nn.Module, seen: list[str]) -> dict[str, Callable[[], Any]]:
    module = nn.modules.module
    return {
        "forward": lambda: net.register_forward_hook(lambda *_: seen.append("f")),
        "pre": lambda: net.register_forward_pre_hook(lambda *_: seen.append("p")),
        "backward": lambda: net.register_full_backward_hook(
            lambda *_: seen.append("b")
        ),
        "backward pre": lambda: net.register_full_backward_pre_hook(
            lambda *_: seen.append("b")
        ),
        "always": lambda: net.register_forward_hook(
            lambda *_: seen.append("f"), always_call=True
        ),
        "all forward": lambda: module.register_module_forward_hook(
            lambda *_: seen.append("f")
        ),
        "all pre": lambda: module.register_module_forward_pre_hook(
            lambda *_: seen.append("p")
        ),
        "all backward": lambda: module.register_module_full_backward_hook(
            lambda *_: seen.append("b")
        ),
        "all backward pre": lambda: module.register_module_full_backward_pre_hook(
            lambda *_: seen.append("b")
        ),
    }


@pytest.mark.parametrize("make", [nn.ReLU, Block])
@pytest.mark.parametrize("how", _hooked(nn.ReLU(), []))
def test_hooks_run(how: str, make: Callable[[], nn.Module]) -> None:
    def program() -> list[str]:
        seen: list[str] = []
        net, x = make(), torch.randn(2, 4, requires_grad=True)
        net(x).sum().backward()
        handle = _hooked(net, seen)[how]()
        net(x).sum().backward()
        handle.remove()
        net(x).sum().backward()
        return seen

    stock = program()
    assert stock
    with on():
        assert program() == stock


class Doubling(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class OfItsOwn(nn.Module):
    def _call_impl(self, x: Tensor) -> Tensor:
        return 5 * self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Unfinished(nn.Module):
    def __init__(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


def _instance(name: str, value: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = nn.ReLU()
        net.__dict__[name] = value
        return net

    return make


@pytest.mark.parametrize(
    "make",
    [
        Doubling,
        OfItsOwn,
        Unfinished,
        nn.Module,
        _instance("forward", lambda x: x - 1),
        _instance("_call_impl", lambda x: x - 2),
        _instance("_compiled_call_impl", lambda x: x - 3),
        _instance("inplace", 1),
        lambda: torch.jit.script(Block()),
        lambda: torch.fx.symbolic_trace(Block()),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.LazyLinear(3),
    ],
)
def test_modules_of_other_kinds(make: Callable[[], nn.Module]) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        try:
            net = make()
            with torch.no_grad():
                return [net(torch.ones(2, 4)).tolist() for _ in range(2)]
        except Exception as error:
            return type(error), str(error)

    stock = program()
    with on():
        assert program() == stock


def test_subclasses_of_tensors() -> None:
    class Marked(torch.Tensor):
        pass

    def program() -> list[Any]:
        x = torch.ones(2, 4).as_subclass(Marked)
        y = torch.func.vmap(nn.ReLU())(torch.ones(3, 4))
        return [type(nn.ReLU()(x)), type(Block()(x)), y.tolist()]

    stock = program()
    with on():
        assert program() == stock


def test_autocast_and_inference_mode() -> None:
    def program() -> list[Any]:
        net, x = network(), torch.ones(1, 4, 7, 7)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = net(x)
        with torch.inference_mode():
            b = net(x)
        return [a.dtype, a.tolist(), b.is_inference(), b.tolist()]

    stock = program()
    with on():
        assert program() == stock


@pytest.mark.parametrize("when", ["before", "after"])
def test_compiles_in_one_graph(when: str) -> None:
    def program() -> Any:
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        net = torch.compile(network(), backend=counter, fullgraph=True)
        x = torch.ones(1, 4, 7, 7)
        results = [net(x).tolist() for _ in range(3)]
        return counter.frame_count, counter.op_count, results

    stock = program()
    if when == "after":
        with on():
            assert program() == stock
        return
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    net = torch.compile(network(), backend=counter, fullgraph=True)
    x = torch.ones(1, 4, 7, 7)
    results = [net(x).tolist()]
    with on():
        results += [net(x).tolist() for _ in range(2)]
    assert (counter.frame_count, counter.op_count, results) == stock


def test_export_and_script() -> None:
    def program() -> Any:
        net, x = network(), torch.ones(1, 4, 7, 7)
        exported = torch.export.export(net, (x,))
        ops = [str(n.target) for n in exported.graph.nodes]
        scripted = torch.jit.script(net)
        return ops, exported.module()(x).tolist(), scripted(x).tolist()

    stock = program()
    with on():
        assert program() == stock


def test_copies_and_pickles() -> None:
    with on():
        net, x = network(), torch.ones(1, 4, 7, 7)
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert torch.equal(other(x), net(x))


def test_a_sequential_that_contains_itself() -> None:
    def program() -> type[BaseException] | None:
        net = nn.Sequential(nn.ReLU())
        net._modules["1"] = net
        try:
            net(torch.ones(1))
        except RecursionError as error:
            return type(error)
        return None

    assert program() is RecursionError
    with on():
        assert program() is RecursionError


def test_toggled_while_threads_call() -> None:
    net, x = network(), torch.ones(1, 4, 7, 7)
    expected = net(x)

    def is_right() -> bool:
        with torch.no_grad():
            return torch.allclose(net(x), expected, rtol=1e-4, atol=1e-6)

    assert hold_while_toggled(is_right, on)


def test_what_others_have_put_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: nn.Module, *args: Any, **keywords: Any) -> Any:
        return STOCK(self, *args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__call__", call)
        with on():
            assert vars(nn.Module)["__call__"] is call
            assert n_leaves(lambda: nn.ReLU()(torch.ones(2))) == 0
            assert "nn.modules.module.Module.__call__ was changed" in str(ptac.report())


def test_nn_sequential_is_a_leaf() -> None:
    """Its children run without its forward, whose frame a debugger would see."""
    net = nn.Sequential(nn.ReLU(), nn.Identity(), nn.Sequential(nn.Tanh()))

    def program() -> list[str]:
        seen: list[str] = []

        class Asking(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                frames = traceback.extract_stack()
                seen.extend(f.name for f in frames if f.name != "Asking")
                return x

        nn.Sequential(Asking())(torch.ones(2))
        return seen

    assert "forward" in program()[:-1]
    with on():
        assert n_leaves(lambda: net(torch.ones(2, 2))) == 3
        assert "forward" not in program()[:-1]


class Proxy(nn.Module):
    """Everything is another module's."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        object.__setattr__(self, "_module", module)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in ("__class__", "__dict__") or "_module" not in own:
            return object.__getattribute__(self, name)
        return getattr(own["_module"], name)


def test_classes_that_answer_for_their_attributes() -> None:
    class Answering(nn.Module):
        _forward_hooks = property(
            lambda self: {0: lambda m, a, y: y * 3}, lambda self, value: None
        )

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    def program() -> list[Any]:
        net = nn.Linear(4, 4)
        net.register_forward_hook(lambda m, a, y: y * 0 + 7)
        return [Proxy(net)(torch.ones(4)).tolist(), Answering()(torch.ones(2)).tolist()]

    stock = program()
    with on():
        assert program() == stock


def test_too_few_dimensions_are_torchs_error() -> None:
    with on(), pytest.raises(ValueError, match="at least"):
        nn.AdaptiveAvgPool2d((2, 2))(torch.ones(4, 4))


def test_what_the_interpreter_keeps_is_found() -> None:
    with on():
        from pai_torchacc.fusion.calls import module_call

        assert _host.learns_type_versions(_C)
        assert module_call._learn_tracing(_C)
