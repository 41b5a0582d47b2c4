"""Attention modules at level fast: their projections in bfloat16, all else as ever."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from lowering import needs_bf16, rounding
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

pytestmark = needs_bf16

OPS = ("linear_act", "linear_act_backward")
N, L, S, E = 3, 12, 20, 64


@contextmanager
def lowered() -> Iterator[switching.Hits]:
    with rounding(*OPS) as hits:
        yield hits["linear_act"]


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(E, 4, **options)


def encoder(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    options = {"batch_first": True, "dropout": 0.0} | options
    return nn.TransformerEncoderLayer(E, 4, 128, **options)


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def padding(n: int) -> Tensor:
    mask = torch.zeros(N, n, dtype=torch.bool)
    mask[1, n // 2 :] = True
    return mask


MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other sizes": {"kdim": 48, "vdim": 80},
    "more keys": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("with_self", [True, False], ids=["self", "cross"])
@pytest.mark.parametrize("name", MODULES)
def test_attention_in_training(name: str, with_self: bool, need_weights: bool) -> None:
    options = MODULES[name]
    if with_self and "kdim" in options:
        with_self = False  # queries and keys have different sizes
    net = attention(**options)

    def sequence(n: int, size: int, dtype: torch.dtype) -> Tensor:
        x = contract.draw(N, n, size, dtype=dtype)
        return (x if net.batch_first else x.transpose(0, 1).contiguous()).clone()

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        mine = copy.deepcopy(net).to(dtype)
        q = sequence(L, E, dtype).requires_grad_()
        k, v = (sequence(S, size, dtype) for size in (net.kdim, net.vdim))
        keys = (q, q) if with_self else (k, v)
        y, weights = mine(q, *keys, need_weights=need_weights)
        assert y.transpose(0, 1).is_contiguous() == net.batch_first
        grad = contract.draw(*y.shape, dtype=dtype)
        y.backward(grad.to(y.dtype))
        results = {n: p.grad for n, p in mine.named_parameters()} | {
            "y": y,
            "q": q.grad,
        }
        if need_weights:
            results["weights"] = weights
        return {n: t.to(dtype) for n, t in results.items()}

    layers = 4  # queries, keys, values, out
    with lowered() as hits:
        contract.hold(case, bf16=True)
        n_runs = 32 if any(p.numel() < 100 for p in net.parameters()) else 1
        assert hits.accelerated == n_runs * (2 if with_self else layers)


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "causal": lambda: {"attn_mask": causal(L)},
    "hint": lambda: {"attn_mask": causal(L), "is_causal": True},
    "padding": lambda: {"key_padding_mask": padding(L)},
    "both": lambda: {"attn_mask": causal(L), "key_padding_mask": padding(L)},
    "added": lambda: {"attn_mask": torch.linspace(-1, 1, L * L).view(L, L)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_in_inference(
    mask: str, batch_first: bool, need_weights: bool
) -> None:
    net = attention(batch_first=batch_first).eval()
    x = torch.randn((N, L, E) if batch_first else (L, N, E))
    more = MASKS[mask]() | {"need_weights": need_weights}
    is_one_operator = batch_first and mask != "added"
    is_plain = mask == "none" and not need_weights
    with torch.no_grad():
        expected = net(x, x, x, **more)
        with lowered() as hits:
            y = net(x, x, x, **more)
            assert hits.accelerated == (0 if is_one_operator and not is_plain else 2)
        assert y[0].stride() == expected[0].stride()
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.01)
        contract.exactly(net(x, x, x, **more), expected)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(mask: str, is_training: bool, norm_first: bool) -> None:
    net = encoder(norm_first=norm_first, activation="gelu").train(is_training)
    x = torch.randn(N, L, E)
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    more = {names.get(k, k): v for k, v in MASKS[mask]().items()}
    with torch.set_grad_enabled(is_training), in_general(mask == "added"):
        expected = net(x, **more)
        with lowered() as hits:
            y = net(x, **more)
            is_masked = mask not in ("none", "added")
            assert hits.accelerated == (0 if is_masked and not is_training else 4)
        assert y.stride() == expected.stride()
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.03)
        contract.exactly(net(x, **more), expected)


@contextmanager
def in_general(is_asked: bool) -> Iterator[None]:
    """Without torch's one operator, which takes masks of numbers for truth values."""
    torch.backends.mha.set_fastpath_enabled(not is_asked)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_dropout_is_stocks() -> None:
    net, x = encoder(dropout=0.5), torch.randn(N, L, E)
    torch.manual_seed(1)
    expected = net(x)
    with lowered():
        torch.manual_seed(1)
        y = net(x)
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)


def test_whole_transformer_trains() -> None:
    torch.manual_seed(0)
    net = nn.Transformer(E, 4, 2, 2, 128, dropout=0.0, batch_first=True)
    src, tgt = torch.randn(N, S, E), torch.randn(N, L, E)

    def gradients() -> list[Tensor]:
        net.zero_grad()
        net(src, tgt).square().mean().backward()
        return [p.grad.clone() for p in net.parameters()]

    expected = gradients()
    with lowered() as hits:
        ours = gradients()
        # Four layers an encoder layer, seven a decoder layer, whose second attention
        # projects queries apart.
        assert hits.accelerated == 2 * 4 + 2 * 7
    for a, b in zip(ours, expected, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-6


def test_only_at_level_fast_and_only_while_on() -> None:
    def are_torchs() -> list[bool]:
        return [vars(owner)[name] is f for (owner, name), f in before.items()]

    before = {place: vars(place[0])[place[1]] for place in PLACES}
    n_builtin = len(torch.jit._builtins._get_builtin_table())
    with ptac.enable("operator_fusion"):
        assert all(are_torchs())
        with ptac.enable("operator_fusion", numerics="fast"):
            assert not any(are_torchs())
        assert all(are_torchs())
    assert all(are_torchs())
    assert len(torch.jit._builtins._get_builtin_table()) == n_builtin


PLACES = (
    (F, "multi_head_attention_forward"),
    (torch, "_native_multi_head_attention"),
    (torch, "_transformer_encoder_layer_fwd"),
)


def test_what_the_table_does_not_claim_is_stocks() -> None:
    net, x = encoder().eval(), torch.randn(1, 2, E)
    with torch.no_grad():
        expected = net(x)
        with ptac.enable(numerics="fast", exclude=["mm", "addmm", "bmm"]):
            contract.exactly(net(x), expected)


def test_autocast_is_the_users() -> None:
    net, x = attention(batch_first=True), torch.randn(N, L, E)

    def call() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x, x, x)[0]

    expected = call()
    with lowered() as hits:
        contract.exactly(call(), expected)
        assert hits.accelerated == 0


def test_nested_tensors_are_stocks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.TransformerEncoder(encoder(), 2).eval()
    x, mask = torch.randn(N, L, E), padding(L)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = net(x, src_key_padding_mask=mask)
        with lowered() as hits:
            y = net(x, src_key_padding_mask=mask)
            assert hits.accelerated == 0
    contract.exactly(y, expected)


def test_hooks_run() -> None:
    net, x = encoder().eval(), torch.randn(N, L, E)
    seen: list[str] = []
    for name, module in net.named_modules():
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
    with torch.no_grad():
        net(x)
        expected, seen = seen, []
        with lowered():
            net(x)
    assert seen == expected


@pytest.mark.parametrize(
    "name",
    ["linear", "softmax", "scaled_dot_product_attention", "_in_projection_packed"],
)
def test_who_patches_functions_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = attention(), torch.randn(L, N, E)
    calls = []
    stock = getattr(F, name)

    def watched(*args: Any, **options: Any) -> Any:
        calls.append(name)
        return stock(*args, **options)

    with lowered():
        monkeypatch.setattr(F, name, watched)
        net(x, x, x, need_weights=name == "softmax")
        assert calls
        monkeypatch.undo()


@pytest.mark.parametrize(
    "name", ["multi_head_attention_forward", "_in_projection_packed"]
)
def test_who_was_first_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*args: Any, **options: Any) -> Any:
        return stock(*args, **options)

    stock = getattr(F, name)
    monkeypatch.setattr(F, name, theirs)
    before = F.multi_head_attention_forward
    net, x = attention(), torch.randn(L, N, E)
    expected = net(x, x, x)
    with lowered():
        assert F.multi_head_attention_forward is before
        assert f"{name} was changed by others" in ptac.report()
        contract.exactly(net(x, x, x)[1], expected[1])
        monkeypatch.undo()
    with lowered() as hits:
        net(x, x, x)
        assert hits.accelerated == 2


def test_other_modules_in_an_encoder_layer() -> None:
    """Whatever a program has put in the place of the attention is called."""

    class Own(nn.Module):
        batch_first = True
        in_proj_bias = None

        def forward(self, q: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
            return 2 * q, None

    net, x = encoder().eval(), torch.randn(N, L, E)
    net.self_attn = Own()
    with torch.no_grad():
        expected = net(x)
        with lowered() as hits:
            y = net(x)
            assert hits.accelerated == 2  # both layers behind the attention
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.03)


def test_tools_see_torchs_own() -> None:
    net, x = encoder().eval(), torch.randn(N, L, E)
    tools: tuple[Callable[[], Any], ...] = (
        lambda: torch.jit.trace(net, x, check_trace=False),
        lambda: torch.jit.script(net),
        lambda: torch.export.export(net, (x,)).module(),
        lambda: copy.deepcopy(net),
        lambda: saved_and_loaded(net),
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tool in tools:
            expected = tool()(x)
            with lowered() as hits:
                made = tool()
                assert hits.accelerated == 0
            contract.exactly(made(x), expected)


@pytest.mark.parametrize("is_training", [False, True])
def test_compiled(is_training: bool) -> None:
    net, x = encoder().train(is_training), torch.randn(N, L, E)
    with torch.set_grad_enabled(is_training), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = net(x)
        with lowered():
            torch._dynamo.reset()
            y = torch.compile(net, backend="eager", fullgraph=True)(x)
            name = "_transformer_encoder_layer_fwd"
            stand_in = getattr(torch, name)
            assert pickle.loads(pickle.dumps(stand_in)) is stand_in
    torch._dynamo.reset()
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.03)


def saved_and_loaded(net: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: net(x[..., :-1], x, x),
        lambda net, x: net(x, x[:, :1], x),
        lambda net, x: net(x, x, x, attn_mask=torch.zeros(3, 5)),
        lambda net, x: net(x.double(), x, x),
        lambda net, x: net(None, x, x),
        lambda net, x: net(*[x.unsqueeze(0)] * 3, need_weights=False),
        lambda net, x: net(x, x, x, is_causal=True),
        lambda net, x: net(x, x, x, attn_mask=torch.zeros(L, L, dtype=torch.int)),
    ],
)
def test_errors_are_torchs(call: Callable[[nn.Module, Tensor], Any]) -> None:
    net, x = attention(), torch.randn(L, N, E)
    with pytest.raises(Exception) as expected:
        call(net, x)
    with lowered(), pytest.raises(type(expected.value)) as ours:
        call(net, x)
    assert str(ours.value) == str(expected.value)


class Halved(nn.TransformerEncoderLayer):
    def _ff_block(self, x: Tensor) -> Tensor:
        return 0.5 * super()._ff_block(x)


def with_dropouts_on(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    return net


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropouts on": lambda: with_dropouts_on(encoder(dropout=0.5).eval()),
    "a method of its own": lambda: Halved(E, 4, 128, batch_first=True).eval(),
    "odd heads": lambda: nn.TransformerEncoderLayer(E - 1, 7, 128).eval(),
    "another activation": lambda: encoder(activation=torch.tanh).eval(),
    "no bias": lambda: encoder(bias=False).eval(),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_what_torch_makes_of_them(name: str, grad: bool) -> None:
    net = LAYERS[name]().requires_grad_(False)
    x = torch.randn(N, L, net.linear1.in_features)
    with torch.set_grad_enabled(grad):
        torch.manual_seed(1)
        expected = net(x)
        with lowered() as hits:
            torch.manual_seed(1)
            y = net(x)
            assert hits.accelerated
    assert y.stride() == expected.stride()
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)


def test_hints_without_a_mask() -> None:
    net, x = encoder().eval(), torch.randn(N, L, E)
    with torch.no_grad():
        expected = net(x, is_causal=True)  # torch's operator takes no notice
        with lowered() as hits:
            y = net(x, is_causal=True)
            assert hits.accelerated == 4
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.03)


def test_functions_of_subclasses() -> None:
    seen = []

    class Watched(Tensor):
        @classmethod
        def __torch_function__(
            cls, f: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(f)
            return super().__torch_function__(f, types, args, kwargs or {})

    net, x = attention(), torch.randn(L, N, E)
    with lowered():
        net(x, x.as_subclass(Watched), x)
        assert F.multi_head_attention_forward in seen


def test_linear_row_is_what_runs() -> None:
    x, w = torch.randn(N, L, E), torch.randn(E, E)
    assert _C.linear_row(x, w) is None
    with lowered() as hits:
        assert _C.linear_row(x, w) == "bf16"
        assert _C.linear_row(x, w[:, 1:]) is None
        assert _C.linear_row(x.double(), w) is None
        assert hits.accelerated == 0
        assert not hits.forwarded
    with pytest.raises(TypeError):
        _C.linear_row(x)
