"""After any sequence of switching the process is as it was before.

Dispatcher entries, attributes of modules and classes and the slots of types are
compared by identity; what others changed over ours is left to them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

import footprint
import hypothesis
import native
import pytest
import switching
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW

import pai_torchacc as ptac
from pai_torchacc import _C, fusion
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion import sequential
from pai_torchacc.fusion.optim import steps

NAMES = [name for name, _, _ in _C.operators()]

# Each asks for zero_grad, since options that leave no operator are refused.
some = st.sets(st.sampled_from(NAMES)).map(lambda names: names | {"zero_grad"})
others = st.sets(st.sampled_from([name for name in NAMES if name != "zero_grad"]))

options = st.fixed_dictionaries(
    {},
    optional={
        "numerics": st.sampled_from(["exact", "close", "fast"]),
        "include": some,
        "exclude": others,
        "verify": st.integers(0, 3),
        "strict": st.booleans(),
    },
)

actions = st.recursive(
    st.one_of(
        st.tuples(st.just("enable"), options),
        st.tuples(st.just("enable_operator_fusion"), some),
        st.tuples(st.just("disable"), st.sampled_from(["all", "named", "own"])),
        st.tuples(st.just("wrong"), st.none()),
        st.tuples(st.just("train"), st.sampled_from([SGD, Adam, AdamW])),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("with"), options, st.lists(inner, max_size=4)),
        st.tuples(st.just("disabled"), st.lists(inner, max_size=4)),
        st.tuples(st.just("raise"), options, st.lists(inner, max_size=4)),
    ),
    max_leaves=12,
)


def train(cls: type) -> None:
    """Use everything that may be switched."""
    model = nn.Sequential(
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    opt = cls(model.parameters(), lr=0.01)
    opt.zero_grad()
    F.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([0, 2])).backward()
    opt.step()


def act(action: tuple[Any, ...]) -> None:
    match action:
        case "enable", given:
            ptac.enable(**given)
        case "enable_operator_fusion", ops:
            ptac.enable_operator_fusion(ops)
        case "disable", "all":
            ptac.disable()
        case "disable", "named":
            ptac.disable("operator_fusion")
        case "disable", "own":
            ptac.disable_operator_fusion()
        case "wrong", None:
            with contextlib.suppress(ValueError):
                ptac.enable(numerics="best")
        case "train", cls:
            train(cls)
        case "with", given, inner:
            with ptac.enable(**given):
                run(inner)
        case "disabled", inner:
            with ptac.disabled():
                run(inner)
        case "raise", given, inner:
            with contextlib.suppress(KeyError), ptac.enable(**given):
                run(inner)
                raise KeyError
        case _:
            raise AssertionError(action)


def run(sequence: list[tuple[Any, ...]]) -> None:
    for action in sequence:
        act(action)


@pytest.fixture(scope="module", autouse=True)
def constructed_before() -> None:
    """What torch itself changes when it is first used.

    These classes, as their first instance is made; the table of builtins, as
    ``torch.ops`` is first asked for an operator (2.11 and 2.12 do so later than 2.13).
    """
    for cls in (SGD, Adam, AdamW):
        train(cls)
    for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
        getattr(torch.ops.aten, name)


@hypothesis.settings(
    max_examples=60 if native.FULL else 30, deadline=None, derandomize=True
)
@hypothesis.given(st.lists(actions, max_size=8))
def test_any_sequence_leaves_nothing(sequence: list[tuple[Any, ...]]) -> None:
    before = footprint.take()
    run(sequence)
    ptac.disable()
    footprint.assert_same(before, footprint.take())
    assert len(fusion._ledger) == 0
    assert not _C.override_installed()


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(options, st.lists(actions, max_size=5))
def test_a_block_restores_what_it_found(
    given: dict[str, Any], sequence: list[tuple[Any, ...]]
) -> None:
    """Calls go where they went before it."""
    with ptac.enable(**given):
        before = accelerated()
        with ptac.enable():
            run(sequence)
        assert accelerated() == before


def accelerated() -> dict[str, int]:
    """How often each operator is accelerated by one training step."""
    hits = {op: switching.hits(op) for op in NAMES}
    with switching.pins(switching.operators_with_rows()):
        train(SGD)
        torch.log_softmax(torch.ones(2, 3), 1)
    return {op: h.accelerated for op, h in hits.items()}


def test_fresh_classes() -> None:
    """Optimizers first constructed while enabled: as torch would have had them."""
    program = """
import footprint, torch, pai_torchacc as ptac
from torch.optim import SGD, AdamW
p = [torch.nn.Parameter(torch.ones(3))]
ptac.enable()
SGD(p), AdamW(p)
ptac.disable()
ours = {cls: vars(cls)["step"] for cls in (SGD, torch.optim.Adam)}
assert all(step.__wrapped__ is not None for step in ours.values())
before = footprint.take()
# Constructing more changes nothing but what torch itself does, once, to AdamW.
assert SGD.step.hooked
SGD(p)
assert vars(SGD)["step"] is ours[SGD]
ptac.enable(); SGD(p), AdamW(p); ptac.disable()
footprint.assert_same(before, footprint.take())
steps = []
SGD(p).register_step_pre_hook(lambda *a: steps.append(1))
opt = SGD(p); opt.register_step_post_hook(lambda *a: steps.append(2)); opt.step()
print(steps)
"""
    assert switching.python(program) == "[2]\n"


@contextlib.contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Somebody else's patch, put back by hand at the end."""
    original = vars(owner)[name]
    try:
        setattr(owner, name, value)
        yield
    finally:
        setattr(owner, name, original)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (nn.Linear, "forward"),
        (torch._C._nn, "cross_entropy_loss"),
        (SGD, "step"),
        (nn.Sequential, "forward"),
        (torch.optim.Optimizer, "zero_grad"),
    ],
)
def test_what_others_changed_over_ours_is_theirs(owner: Any, name: str) -> None:
    stock = vars(owner)[name]
    with changed(owner, name, stock):
        ptac.enable()
        ours = vars(owner)[name]
        assert ours is not stock

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        theirs.hooked = True  # torch wraps a step that does not say this
        setattr(owner, name, theirs)
        train(SGD)
        ptac.disable()
        assert vars(owner)[name] is theirs
        assert f"{name} was changed by others; left as is" in ptac.report()
        # What they kept of ours goes to stock, and counts nothing.
        counts = {op: _C.counters(op)[:3] for op in NAMES}
        train(SGD)
        assert counts == {op: _C.counters(op)[:3] for op in NAMES}


def test_what_others_changed_before_us_is_kept() -> None:
    calls = []
    stock = torch.nn.functional.linear

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return stock(*args, **kwargs)

    with changed(torch.nn.functional, "linear", theirs):
        before = footprint.take()
        with ptac.enable():
            assert torch.nn.functional.linear is theirs
            nn.Linear(3, 3)(torch.ones(2, 3))
            assert calls == [1]
        footprint.assert_same(before, footprint.take())
        assert torch.nn.functional.linear is theirs


def remarks() -> list[str]:
    """All but that of operators that some table has not measured faster here."""
    said = json.loads(ptac.report("json"))["remarks"]
    return [r for r in said if not r.startswith("left to stock, not measured faster")]


@pytest.mark.parametrize(
    ("owner", "name", "stays"),
    [
        (F, "linear", [(nn.Sequential, "forward")]),
        (F, "relu", [(nn.Sequential, "forward")]),
        (nn.Linear, "forward", [(nn.Sequential, "forward")]),
        (nn.Module, "_call_impl", [(nn.Sequential, "forward")]),
        (nn.Sequential, "forward", []),
        (torch._C._nn, "cross_entropy_loss", []),
        (SGD, "step", []),
        (SGD, "_init_group", [(SGD, "step")]),
        (Adam, "step", []),
        (Adam, "_init_group", [(Adam, "step"), (AdamW, "step")]),
        (sys.modules["torch.optim.sgd"], "sgd", [(SGD, "step"), (SGD, "_init_group")]),
        (torch.optim.Optimizer, "zero_grad", []),
        (torch.optim.Optimizer, "_patch_step_function", []),
    ],
)
@pytest.mark.parametrize("how", ["plain", "wraps", "by torch"])
def test_stand_ins_yield_to_patches_made_before(
    owner: Any, name: str, stays: list[tuple[Any, str]], how: str
) -> None:
    stock = vars(owner)[name]
    calls = []

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return stock(*args, **kwargs)

    if how == "wraps":
        theirs = functools.wraps(stock)(theirs)
    elif how == "by torch":
        theirs = torch.no_grad()(theirs) if owner is SGD else theirs
    theirs.hooked = True
    with changed(owner, name, theirs):
        if owner is Adam and name in vars(AdamW):
            # torch.compile gives AdamW an _init_group of its own around Adam's.
            stays = [place for place in stays if place[0] is not AdamW]
        kept = [(o, n, vars(o).get(n)) for o, n in [(owner, name), *stays]]
        with switching.accelerated():
            assert all(vars(o).get(n) is value for o, n, value in kept)
            place = f"{name} was changed by others; left as is"
            assert [r for r in remarks() if r.endswith(place)] == remarks()
            assert place in ptac.report()
            hits = switching.hits("zero_grad")
            before = len(calls)
            train(Adam if owner is Adam else SGD)
            F.relu(nn.Module.__call__(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)))
            assert len(calls) > before
            assert (hits.accelerated == 0) == (name == "zero_grad")
        assert remarks() == []


def test_patches_over_ours_before_switching_on_again() -> None:
    stock = F.linear
    with changed(F, "linear", stock):
        ptac.enable()
        ours = F.linear

        def theirs(*args: Any) -> Any:
            return ours(*args) + 1

        F.linear = theirs
        ptac.disable()
        x = torch.ones(2, 3)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        expected = model(x)
        with switching.accelerated():
            assert F.linear is theirs
            assert torch.equal(model(x), expected)
            assert remarks()[0].startswith("torch.nn.functional.linear was changed")
        assert F.linear is theirs


def test_what_torch_wraps_itself_is_not_foreign() -> None:
    """Profiling, schedulers, torch.compile: the stand-ins go in."""
    program = """
import json, torch, pai_torchacc as ptac
p = [torch.nn.Parameter(torch.ones(3))]
def check():
    with ptac.enable():
        said = json.loads(ptac.report("json"))["remarks"]
        assert all(r.startswith("left to stock, not measured faster") for r in said)
        assert all("pai_torchacc" in f.__globals__["__name__"] for f in (
            torch.optim.SGD.step, torch.optim.SGD._init_group, torch.optim.AdamW.step,
            torch.optim.Adam._init_group, torch.nn.Sequential.forward,
            torch.optim.Optimizer.zero_grad, torch.nn.Linear.forward))
check()
for cls in torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW:
    torch.optim.lr_scheduler.StepLR(cls(p), 1)
check()
torch.compile(lambda x: x + 1, backend="eager")(p[0])
import torch._dynamo.eval_frame
torch._dynamo.eval_frame.TorchPatcher.patch()
check()
"""
    switching.python(program)


def test_overrides_by_others_win() -> None:
    """An operator that somebody else had overridden is left to them, and reported."""
    called = []

    def theirs(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        called.append(1)
        return torch.zeros_like(x)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_log_softmax", theirs, "CPU", allow_override=True)
    try:
        with switching.accelerated("log_softmax", "max_pool2d"):
            assert not torch.log_softmax(torch.ones(2, 3), 1).any()
            assert called == [1]
            assert "log_softmax: overridden by" in ptac.report()
            hits = switching.hits("max_pool2d")
            F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
            assert hits.accelerated == 1
    finally:
        library._destroy()
    with switching.accelerated("log_softmax"):
        hits = switching.hits("log_softmax")
        assert torch.log_softmax(torch.ones(2, 3), 1).all()
        assert hits.accelerated == 1


def test_an_override_of_several_operators_is_ours_for_each() -> None:
    """Also for those that are not wanted, or that no row serves."""
    from pai_torchacc import _C
    from pai_torchacc.fusion import foreign

    names = [name for name in _C.override_names() if name[0] == "convolution"]
    with (
        switching.pins(["conv2d", "depthwise_conv2d"]),
        ptac.enable("operator_fusion", include=["depthwise_conv2d"]),
    ):
        assert "conv2d" not in _C.override_installed()
        assert not foreign.overridden(names, {"depthwise_conv2d"}, "CPU")
        assert len(foreign.overridden(names, set(), "CPU")) == len(names) == 2


PLACES = [
    (fusion, "_install_overrides"),
    (fusion, "_install_stand_ins"),
    (steps, "install"),
    (sequential, "_sequential_forward"),
    (torch.jit._builtins, "_get_builtin_table"),
    (fusion, "_open_gates"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES)
@pytest.mark.parametrize("kind", [AttributeError, ImportError, KeyboardInterrupt])
@pytest.mark.parametrize("was_on", [False, True])
def test_an_exception_while_switching_on_leaves_nothing(
    owner: Any, name: str, kind: type[BaseException], was_on: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: Any) -> None:
        raise kind("not there")

    before = footprint.take()
    if was_on:
        ptac.enable(include=["max_pool2d"])
    is_reason = kind is not KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        reached = not was_on or owner is fusion
        if not is_reason and reached:
            with pytest.raises(KeyboardInterrupt):
                ptac.enable()
        elif reached:
            handle = ptac.enable()
            assert f"{kind.__name__}: not there" in str(handle.reason)
            with pytest.raises(RuntimeError, match="not there"):
                ptac.enable(strict=True)
    ptac.disable()
    footprint.assert_same(before, footprint.take())
    assert len(fusion._ledger) == 0
    with switching.accelerated("max_pool2d"):
        hits = switching.hits("max_pool2d")
        F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
        assert hits.accelerated == 1


class Owner:
    kept = 1


def test_ledger_undoes_what_was_about_to_happen() -> None:
    class Stubborn(dict[str, int]):
        def __setitem__(self, key: str, value: int) -> None:
            super().__setitem__(key, value)
            raise KeyboardInterrupt

    ledger, mapping = Ledger(), Stubborn()
    with pytest.raises(KeyboardInterrupt):
        ledger.set_item(mapping, "a", 1)
    with pytest.raises(TypeError):
        ledger.set_attribute(int, "kept", 2)
    ledger.undo()
    assert not mapping
    assert not ledger.remarks
    assert len(ledger) == 0


def test_ledger_undoes_backwards() -> None:
    ledger, mapping = Ledger(), {"a": 1}
    ledger.set_attribute(Owner, "kept", 2)
    ledger.set_attribute(Owner, "kept", 3)
    ledger.set_attribute(Owner, "made", 4)
    ledger.set_item(mapping, "a", 5)
    ledger.set_item(mapping, "b", 6)
    assert (Owner.kept, Owner.made, mapping) == (3, 4, {"a": 5, "b": 6})
    ledger.undo()
    assert Owner.kept == 1
    assert not hasattr(Owner, "made")
    assert mapping == {"a": 1}
    assert not ledger.remarks
    assert len(ledger) == 0
