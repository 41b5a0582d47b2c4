"""What a call can do unseen: it is refused, or guards compare it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unasked import called, hits, refusals, unedited

import pai_torchacc as ptac

Function = Callable[..., Any]


class Layer(nn.Module):
    """A linear layer, and a function that is called with it."""

    def __init__(self, function: Function):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.function = function
        self.config = SimpleNamespace(scale=2.0)
        self.special = torch.ones(4, 8)
        self.dummy = nn.Parameter(torch.ones(3))
        self.several = nn.ParameterList([torch.ones(3)])

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _planned_unasked() -> Iterator[None]:
    with unedited(), torch.no_grad():
        yield


def _layer(function: Function) -> Layer:
    return Layer(function).eval()


def _assert_refused(layer: Layer, why: str, *args: Any) -> None:
    called(layer, *args)
    called(layer, *args)
    assert hits(layer) == 0
    (text,) = [text for name, text in refusals() if name == "Layer"][-1:]
    assert why in text


# --- containers among arguments


def _stores(self: Any, batch: dict[str, Tensor]) -> Any:
    batch["y"] = torch.tanh(self.linear(batch["x"]))
    return batch


def _keeps_state(self: Any, states: list[Tensor]) -> Tensor:
    states[0] = torch.tanh(self.linear(states[0]))
    return states[0]


def _reverses(self: Any, xs: list[Tensor]) -> Tensor:
    xs.reverse()
    return torch.tanh(self.linear(xs[0]))


def _stores_deep(self: Any, xs: list[Any]) -> Tensor:
    xs[0]["k"] = torch.cat([xs[0]["k"], self.linear(X)])[-4:]
    return torch.tanh(xs[0]["k"])


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize(
    "function, argument",
    [
        (_stores, lambda: {"x": X.clone()}),
        (_keeps_state, lambda: [X.clone()]),
        (_reverses, lambda: [X.clone(), X + 1]),
        (_stores_deep, lambda: [{"k": X.clone()}]),
    ],
)
def test_what_is_stored_into_an_argument_is_there(
    function: Function, argument: Callable[[], Any], is_asked: bool
) -> None:
    layer, ours, stocks = _layer(function), argument(), argument()
    if is_asked:
        ptac.optimize(layer, on_refusal="ignore")
    for i in range(8):
        if isinstance(ours, dict):
            ours["x"] = stocks["x"] = X + i
        mine, theirs = layer(ours), layer._call_impl(stocks)
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(ours, stocks)
        assert (mine is ours) == (theirs is stocks)
    if not is_asked:
        assert "forward changes its arguments" in dict(refusals())["Layer"]


def _returns_it(self: Any, x: Tensor, made: list[float]) -> Any:
    return torch.tanh(self.linear(x)), made


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_argument_that_is_returned_is_that_very_one(is_asked: bool) -> None:
    layer, made = _layer(_returns_it), [1.0]
    if is_asked:
        ptac.optimize(layer, on_refusal="ignore")
    assert called(layer, X, made)[1] is made


# --- identity


def _is_one(self: Any, q: Tensor, k: Tensor) -> Tensor:
    y = torch.tanh(self.linear(q))
    return y + k if q is k else y - k


def _is_its(self: Any, x: Tensor) -> Tensor:
    y = torch.tanh(self.linear(x))
    return y * 2 if x is self.special else y


def _is_either(self: Any, x: Tensor) -> Tensor:
    y = torch.tanh(self.linear(x))
    return y * 2 if x is (None if y is None else self.special) else y


def test_identity_is_not_asked() -> None:
    why = "asks whether two objects are one"
    _assert_refused(_layer(_is_one), f"_is_one {why}", X, X + 1)
    _assert_refused(_layer(_is_its), f"_is_its {why}", X)
    _assert_refused(_layer(_is_either), f"_is_either {why}", X)


def _is_a_layer(self: Any, x: Tensor) -> Tensor:
    for layer in (self.linear, self.linear):
        x = torch.tanh(layer(x)) if layer is self.linear else x
    return x


def _is_of_another(self: Any, x: Tensor) -> Tensor:
    layer, self = self.linear, self.config
    return torch.tanh(layer(x)) if layer is not self.scale else x


def test_a_submodule_is_under_guard() -> None:
    layer = _layer(_is_a_layer)
    called(layer, X)
    assert hits(layer) == 1
    layer.linear = nn.Linear(8, 8)
    torch.testing.assert_close(layer(X), layer._call_impl(X))
    _assert_refused(_layer(_is_of_another), "asks whether two objects are one", X)


def _is_none(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    flag = mask is None
    y = self.linear(x) if mask is None or self.config is not None else x
    return torch.tanh(y) if flag is True else torch.relu(y)


def test_none_is_one_object() -> None:
    layer = _layer(_is_none)
    called(layer, X)
    assert hits(layer) == 1


# --- exceptions


def _excepts(self: Any, x: Tensor) -> Tensor:
    y = torch.tanh(self.linear(x))
    try:
        k = self.config.more
    except:  # noqa: E722
        k = 1.0
    return y * k


class Silent:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return True


def _silences(self: Any, x: Tensor) -> Tensor:
    y, k = torch.tanh(self.linear(x)), 1.0
    with Silent():
        k = self.config.more
    return y * k


def _does_not_need_to(self: Any, x: Tensor) -> Tensor:
    with Silent():
        return torch.tanh(self.linear(x))


def test_exceptions_are_not_caught() -> None:
    _assert_refused(_layer(_excepts), "_excepts catches exceptions", X)
    _assert_refused(_layer(_silences), "__exit__ catches exceptions", X)
    layer = _layer(_does_not_need_to)
    called(layer, X)
    assert hits(layer) == 1


# --- what asks unseen


def _gets(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.linear(x)) * operator.attrgetter("scale")(self.config)


def _calls(self: Any, x: Tensor) -> Tensor:
    return operator.methodcaller("tanh")(self.linear(x))


def _of_autocast(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.linear(x)).to(torch.get_autocast_dtype("cpu"))


def test_what_asks_unseen_is_refused() -> None:
    text = "operator.attrgetter is a class that is not plain"
    _assert_refused(_layer(_gets), text, X)
    _assert_refused(_layer(_calls), "operator.methodcaller is a class", X)
    _assert_refused(_layer(_of_autocast), "get_autocast_dtype() is called", X)


# --- functions that are changed in place


def _times(y: Tensor, k: float = 2.0, *, more: float = 1.0) -> Tensor:
    return y * k + more


def _less(y: Tensor, k: float = 2.0, *, more: float = 1.0) -> Tensor:
    return y - k


TIMES = functools.partial(torch.mul, other=2.0)


def _by_function(self: Any, x: Tensor) -> Tensor:
    return _times(torch.tanh(self.linear(x)))


def _by_partial(self: Any, x: Tensor) -> Tensor:
    return TIMES(torch.tanh(self.linear(x)))


@pytest.mark.parametrize(
    "name, value",
    [
        ("__code__", _less.__code__),
        ("__defaults__", (7.0,)),
        ("__kwdefaults__", {"more": 5.0}),
    ],
)
def test_a_function_that_is_changed_in_place(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    layer = _layer(_by_function)
    called(layer, X)
    assert hits(layer) == 1
    monkeypatch.setattr(_times, name, value)
    torch.testing.assert_close(layer(X), layer._call_impl(X))


def test_a_partial_that_is_changed_in_place() -> None:
    layer = _layer(_by_partial)
    called(layer, X)
    assert hits(layer) == 1
    for change in (
        lambda: TIMES.keywords.update(other=3.0),
        lambda: TIMES.__setstate__((torch.mul, (), {"other": 5.0}, {})),  # type: ignore[attr-defined]
    ):
        change()
        torch.testing.assert_close(layer(X), layer._call_impl(X))


# --- tensors that no operator reads


def _of_type(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(torch.relu(x).to(self.dummy.dtype))


def _of_size(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(torch.relu(x)[:, : self.dummy.shape[0]])


def _of_size_in_list(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(torch.relu(x)[:, : self.several[0].shape[0]])


SIZED = torch.ones(3)


def _of_global(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(torch.relu(x)[:, : SIZED.shape[0]])


def _resize(layer: Layer) -> None:
    layer.dummy.data = torch.ones(5)
    layer.several[0].data = torch.ones(5)
    SIZED.resize_(SIZED.numel() + 1)


@pytest.mark.parametrize(
    "function, change",
    [
        (_of_type, lambda layer: layer.double()),
        (_of_size, _resize),
        (_of_size_in_list, _resize),
        (_of_global, _resize),
    ],
)
def test_a_tensor_that_is_asked_for_its_kind(
    function: Function, change: Callable[[Layer], Any]
) -> None:
    layer = _layer(function)
    called(layer, X)
    assert hits(layer) == 1
    change(layer)
    ours, expected = layer(X), layer._call_impl(X)
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(ours, expected)


# --- attributes of arguments


def _by_flag(self: Any, x: Any) -> Tensor:
    y = torch.tanh(self.linear(x))
    return y * 2 if x.flag else y


def test_attributes_of_arguments_are_not_asked() -> None:
    x = X.clone()
    x.flag = True  # type: ignore[attr-defined]
    _assert_refused(_layer(_by_flag), "a tensor with the attribute flag", x)


def _is_among(self: Any, x: Tensor) -> Tensor:
    y = torch.tanh(self.linear(x))
    return y * 2 if x in [self.special] else y


def test_an_argument_that_is_read_by_name() -> None:
    layer = _layer(_is_among)
    _assert_refused(layer, "read by name as well", layer.special)


def test_arguments_with_attributes_are_given_back() -> None:
    layer, x = _layer(_is_none), X.clone()
    called(layer, x)
    assert hits(layer) == 1
    x.relu = x.tanh = lambda: x  # type: ignore[method-assign]
    torch.testing.assert_close(layer(x), layer._call_impl(x))
    assert hits(layer) == 1
    layer(X)
    assert hits(layer) == 2
