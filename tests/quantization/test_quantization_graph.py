"""int8 models in graphs: gradients, optimizers, autocast, torch.func, compilers."""

from __future__ import annotations

import copy
import io
import types
import warnings
from collections.abc import Iterator

import int8
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import operators, selection, training


@pytest.fixture(autouse=True)
def off_at_the_end() -> Iterator[None]:
    yield
    ptac.disable()
    torch._dynamo.reset()
    assert training._registered == []


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_gradients_are_those_of_the_dequantized_weights(name: str) -> None:
    """Layer by layer, where both sides are given the same values to go through."""
    make, x = int8.MODELS[name]
    with int8.kernels() as made:
        model = ptac.quantize_model(make(), method="int8")
        floats = ptac.dequantize_model(copy.deepcopy(model))
        for layer, stock in zip(model.modules(), floats.modules(), strict=True):
            if not hasattr(layer, "_int8"):
                continue
            shape = (
                (4, layer.in_channels, 9, 9)
                if name == "conv" and hasattr(layer, "in_channels")
                else (4, layer._int8.shape[1])
            )
            inputs = [torch.randn(shape).requires_grad_() for _ in range(2)]
            inputs[1].data = inputs[0].data.clone()
            made.clear()
            a, b = layer(inputs[0]), stock(inputs[1])
            assert len(made) == 1
            assert a.requires_grad
            grad = torch.randn(a.shape)
            a.backward(grad)
            b.backward(grad)
            torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
            if layer.bias is not None:
                torch.testing.assert_close(layer.bias.grad, stock.bias.grad)
        y = model(x)
        assert y.requires_grad


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_other_dtypes_have_gradients(name: str) -> None:
    make, x = int8.MODELS[name]
    with int8.kernels():
        model = ptac.quantize_model(make(), method="int8").double()
        stock = ptac.dequantize_model(copy.deepcopy(model))
        grads = []
        for f in (model, stock):
            leaf = x.double().requires_grad_()
            f(leaf).square().sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)


def test_second_derivatives() -> None:
    with int8.kernels():
        layer = ptac.quantize_model(nn.Linear(4, 3), method="int8")
        x = torch.randn(2, 4, requires_grad=True)
        (g,) = torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(g.sum(), x)
        w = layer.weight
        torch.testing.assert_close(again, (2 * w.t() @ w).sum(0).expand(2, 4))


def test_training_warns_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a frame takes the address of one before."""

    def address(thing: object) -> int:
        return 7 if isinstance(thing, types.FrameType) else id(thing)

    monkeypatch.setattr(training, "id", address, raising=False)
    models = [ptac.quantize_model(int8.mlp(), method="int8") for _ in range(2)]
    for model in models:
        with pytest.warns(UserWarning, match="do not train"):
            model.train()


def test_training_warns_once_a_call() -> None:
    model = ptac.quantize_model(int8.mlp(), method="int8")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.train()
        assert len(caught) == 1
        assert "dequantize_model" in str(caught[0].message)
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.eval()
        model.train(False)
    with pytest.warns(UserWarning, match="do not train"):
        model[2].train()
    ptac.dequantize_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.train()


def test_a_bias_trains_on() -> None:
    with int8.kernels():
        model = ptac.quantize_model(int8.mlp(), method="int8")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(int8.ROWS), torch.arange(16) % 10)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_a_stale_optimizer_is_told_once() -> None:
    model = int8.mlp()
    stale = torch.optim.SGD(model.parameters(), 0.1)
    other = torch.optim.SGD(int8.mlp().parameters(), 0.1)
    ptac.quantize_model(model, method="int8")
    with pytest.warns(UserWarning, match="holds 3 parameters"):
        stale.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stale.step()
        other.step()
        torch.optim.SGD(model.parameters(), 0.1).step()
    late = torch.optim.Adam([stale.param_groups[0]["params"][0]])
    ptac.disable_model_quantization()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late.step()
    ptac.enable_model_quantization()
    with pytest.warns(UserWarning, match="this Adam holds 1"):
        late.step()


def test_masters_are_not_stale_when_they_are_back() -> None:
    model = int8.mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ptac.quantize_model(model, method="int8", keep_master=True)
    ptac.dequantize_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(int8.MODELS))
def test_autocast(name: str, dtype: torch.dtype) -> None:
    make, x = int8.MODELS[name]
    stock = make()
    with int8.kernels() as made, torch.no_grad():
        model = ptac.quantize_model(make(), method="int8")
        made.clear()
        with torch.autocast("cpu", dtype=dtype):
            a, b = stock(x), model(x)
        assert a.dtype == b.dtype
        assert len(made) > 2
        assert int8.sqnr_db(a.float(), b.float()) > 25
    with int8.kernels(), torch.autocast("cpu", dtype=dtype):
        y = model(x)
        assert y.requires_grad
        y.sum().backward()
        assert all(p.grad.dtype == p.dtype for p in model.parameters())


def test_transforms_compute_dequantized() -> None:
    with int8.kernels():
        layer = ptac.quantize_model(nn.Linear(4, 3), method="int8")
        stock = ptac.dequantize_model(copy.deepcopy(layer))
        x = torch.randn(5, 4)
        for transform in (
            torch.func.vmap,
            lambda f: torch.func.vmap(torch.func.grad(lambda v: f(v).sum())),
            lambda f: torch.func.vmap(torch.func.jacrev(f)),
            lambda f: torch.func.vmap(torch.func.jacfwd(f)),
        ):
            torch.testing.assert_close(transform(layer)(x), transform(stock)(x))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangent = torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent
        torch.testing.assert_close(tangent, layer.weight.sum(1).expand(5, 3))


@pytest.mark.parametrize("name", list(int8.MODELS))
def test_compile_keeps_the_operators(name: str) -> None:
    make, x = int8.MODELS[name]
    with int8.kernels() as made, torch.no_grad():
        model = ptac.quantize_model(make(), method="int8")
        expected = model(x)
        made.clear()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
        assert made
        ptac.disable_model_quantization()
        made.clear()
        assert int8.sqnr_db(expected, compiled(x)) > 28
        assert not made


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_compile_has_gradients(name: str) -> None:
    make, x = int8.MODELS[name]
    with int8.kernels():
        model = ptac.quantize_model(make(), method="int8")
        grads = []
        for f in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            leaf = x.clone().requires_grad_()
            f(leaf).square().sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", list(int8.MODELS))
def test_export_has_the_operators(name: str) -> None:
    make, x = int8.MODELS[name]
    with int8.kernels(), torch.no_grad():
        model = ptac.quantize_model(make(), method="int8")
        expected = model(x)
        program = torch.export.export(model, (x,))
        ops = {str(node.target) for node in program.graph.nodes}
        assert "pai_torchacc.int8_linear.default" in ops
        assert ("pai_torchacc.int8_conv2d.default" in ops) == (name == "conv")
        assert ("pai_torchacc.int8_embedding.default" in ops) == (name == "tied")
        assert torch.equal(program.module()(x), expected)
        stream = io.BytesIO()
        torch.export.save(program, stream)
        stream.seek(0)
        assert torch.equal(torch.export.load(stream).module()(x), expected)


def test_tracing_has_the_operators() -> None:
    with int8.kernels(), torch.no_grad():
        model = ptac.quantize_model(int8.mlp(), method="int8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, (int8.ROWS,))
        assert "pai_torchacc::int8_linear" in str(traced.inlined_graph)
        assert torch.equal(traced(int8.ROWS), model(int8.ROWS))


class Recurrent(nn.Module):
    """Layers that have kinds of call, behind one that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(20, 16, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.recurrent(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("faster", ["m1", "m32_up"])
def test_graphs_are_for_any_number_of_rows(
    faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where some kinds of call are float, a graph has the int8 operator for all."""
    monkeypatch.setattr(selection, "is_faster", lambda op, kind, work: kind == faster)
    model = ptac.quantize_model(Recurrent().eval())
    x = torch.randn(9, 4, 20)
    batch = torch.export.Dim("batch", min=2, max=4096)
    with int8.kernels() as made, torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
            traced = torch.jit.trace(model, (x,))
        compiled = torch.compile(model, backend="aot_eager", dynamic=True)
        floats = ptac.dequantize_model(copy.deepcopy(model))
        for graph in (program.module(), traced, compiled):
            for n in (2, 9, 40):
                x = torch.randn(n, 4, 20)
                made.clear()
                y = graph(x)
                assert made == ["int8_linear"] * 3
                assert int8.sqnr_db(floats(x), y) > 25


class Reader(nn.Module):
    """Computes with the weights of its layers, which it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 6)
        self.conv = nn.Conv2d(20, 6, 3, groups=2)
        self.attention = nn.MultiheadAttention(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.linear.weight, self.linear.bias).sum()
        y = y + self.linear.weight_int8.sum() + self.conv.weight.sum()
        return y + F.linear(x, self.attention.in_proj_weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*int8.MODELS, "reader"])
def test_graphs_with_dequantized_weights(name: str, dtype: torch.dtype) -> None:
    """They hold int8 weights, which they dequantize when they run."""
    torch.manual_seed(0)
    make, x = int8.MODELS.get(name, (lambda: Reader().eval(), int8.ROWS))
    x = x.to(dtype) if x.is_floating_point() else x
    method = "int8" if name == "reader" else "weight_only"
    with torch.no_grad():
        model = ptac.quantize_model(make(), method=method).to(dtype)
        expected = model(x)
        program = torch.export.export(model, (x,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, (x,))
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for graph in (program.module(), traced, compiled):
            torch.testing.assert_close(graph(x), expected, rtol=1e-4, atol=1e-4)
    assert "pai_torchacc.int8_unpack" in str(program.graph)
    assert "pai_torchacc::int8_unpack" in str(traced.inlined_graph)


def test_symbolic_traces_are_quantized() -> None:
    with int8.kernels() as made, torch.no_grad():
        traced = torch.fx.symbolic_trace(int8.conv_net())
        expected = ptac.quantize_model(int8.conv_net(), method="int8")(int8.IMAGES)
        ptac.quantize_model(traced, method="int8")
        made.clear()
        assert torch.equal(traced(int8.IMAGES), expected)
        assert len(made) == 5


CHECKS = (
    *("test_schema", "test_autograd_registration"),
    *("test_faketensor", "test_aot_dispatch_dynamic"),
)
"""All that torch.library.opcheck has."""


def samples(name: str) -> tuple[object, ...]:
    from pai_torchacc.quantization import quantizer
    from pai_torchacc.quantization.quantizer import FP8

    layer = nn.Conv2d(4, 6, 3, groups=2) if name == "int8_conv2d" else nn.Linear(8, 6)
    if name == "fp8_linear":
        q = quantizer.quantize(layer.weight, FP8)
        bias = torch.randn(6, requires_grad=True)
        return torch.randn(2, 8, requires_grad=True), q.plain, q.scale, bias, 6, 8, 1
    q = quantizer.quantize(layer.weight)
    packed = quantizer.pack(q.plain, 2 if name == "int8_conv2d" else 1)
    bias = torch.randn(6, requires_grad=True)
    if name == "int8_conv2d":
        x = torch.randn(2, 4, 7, 7, requires_grad=True)
        geometry = [6, 2, 3, 3, 2, 1, 1, 0, 1, 1, 2]
        return x, packed, q.scale, bias, geometry, 1
    if name == "int8_embedding":
        return torch.arange(5), q.plain, q.scale
    if name == "int8_unpack":
        return packed, [6, 8], 1
    return torch.randn(2, 3, 8, requires_grad=True), packed, q.scale, bias, 6, 8, 1


IN_DISPATCHER = sorted({*operators.OPERATORS, "int8_unpack"} - {"int8_sublayer"})


@pytest.mark.parametrize("name", IN_DISPATCHER)
def test_operators_are_sound(name: str) -> None:
    """Fake kernels, autograd registration, AOT dispatch: torch's own checks."""
    operator = getattr(torch.ops.pai_torchacc, name).default
    # The first multiplies what it is given, and e4m3 tensors have no product.
    checks = CHECKS[1:] if name == "fp8_linear" else CHECKS
    torch.library.opcheck(operator, samples(name), test_utils=checks)
    with ptac.enable_model_quantization():
        torch.library.opcheck(operator, samples(name), test_utils=checks)


def test_a_user_function_may_read_the_weight() -> None:
    """Programs that use ``layer.weight`` themselves get the dequantized numbers."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.inner.weight, self.inner.bias)

    with int8.kernels():
        model = ptac.quantize_model(Own(), method="int8")
        x = torch.randn(2, 4)
        stock = ptac.dequantize_model(copy.deepcopy(model))
        assert torch.equal(model(x), stock(x))
