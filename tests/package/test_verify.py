"""ptac.verify: what it holds models to, what it says, and that it leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nested, nn

import pai_torchacc as ptac
from pai_torchacc import verification
from pai_torchacc.bench import contract


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_a_model_keeps_the_contract_and_its_state() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 169, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )
    x = torch.randn(16, 1, 28, 28, requires_grad=True)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    with switching.accelerated():
        hits = switching.hits("linear_act")
        found = ptac.verify(model, x)
        assert hits.accelerated > 0
    assert found, found
    assert {r.name for r in found.rows} >= {"output", "grad 6.weight", "grad input 0"}
    assert "contract 'close': kept" in str(found)
    assert f"{found.accelerated} calls accelerated" in str(found)
    # Convolution and its two gradients; batch normalization, pool, linear with GELU,
    # and their gradients; the last layer.
    assert found.accelerated == 10
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert x.grad is None
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def is_stock() -> bool:
    hits = switching.hits("max_pool2d")
    F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
    return not hits.accelerated


def when_accelerated(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A model whose accelerated result is another one than stock's."""

    def model(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        return y if is_stock() else change(y)

    return model


@pytest.mark.parametrize("size", [5, 50, 500, 5000])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str
)
def test_wrong_numbers_break_it(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(size).to(dtype)
    wrong = {
        "scaled": lambda y: y * (1 + 64 * torch.finfo(dtype).eps),
        "one": lambda y: torch.cat([y[:-1], 2 * y[-1:]]),
        "nan": lambda y: torch.cat([y[:-1], y[-1:] * torch.nan]),
        "shape": lambda y: y[:-1],
        "dtype": lambda y: y.to(torch.float16),
        "strides": lambda y: y.repeat_interleave(2)[::2],
    }
    with switching.accelerated("max_pool2d"):
        assert ptac.verify(when_accelerated(lambda y: y), x)
        for name, change in wrong.items():
            found = ptac.verify(when_accelerated(change), x)
            assert not found, name
            assert "BROKEN" in str(found)


def test_rounding_otherwise_keeps_it() -> None:
    """Within stock's own error: float32 results whose last bit is another one."""

    def nudge(y: Tensor) -> Tensor:
        return torch.nextafter(y, torch.zeros(()))

    with switching.accelerated("max_pool2d"):
        found = ptac.verify(when_accelerated(nudge), torch.randn(5000))
    assert found, found
    assert not found.rows[0].is_equal


def test_kinks_are_stocks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a ReLU's input is next to zero, a last bit decides on the gradient."""
    x = torch.randn(5000)
    stock, exact = torch.tanh(x), torch.tanh(x.double())
    kinks = (stock.double() > exact).nonzero()[:8]
    level = torch.full_like(x, -2)
    level[kinks] = stock[kinks]
    x.requires_grad_()

    def model(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        if not is_stock():
            y = y + y.abs() * torch.finfo(y.dtype).eps
        return (y - level.to(y.dtype)).relu()

    with switching.accelerated("max_pool2d"):
        assert ptac.verify(model, x)
        monkeypatch.setattr(verification, "NUDGES", 0)
        assert not ptac.verify(model, x)


class Placed(nn.Module):
    """A convolution of flat images, whose place parameter sees each pick of the pool.

    Nudging changes neither whole numbers nor zeros, so that stock's ties stay ties.
    """

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 16, 32, 32))
        self.conv = nn.Conv2d(16, 16, 3)
        self.shift = shift

    def forward(self, image: Tensor) -> Tensor:
        x = image.to(self.place.dtype) / 200 + self.place
        y = F.max_pool2d(self.conv(x).relu(), 2)
        if self.shift and not is_stock():
            y.grad_fn._saved_result1.data.add_(self.shift).remainder_(30 * 30)
        return y


FLAT = torch.full((4, 16, 32, 32), 200, dtype=torch.uint8)


def test_ties_of_a_pool_may_be_broken_otherwise() -> None:
    """In a flat area stock's convolution gives equal numbers, ours a bit apart."""
    with switching.accelerated():
        found = ptac.verify(Placed(shift=0), FLAT)
    assert found, found
    assert found.ties
    assert found.ties.n_ties > 100
    assert found.ties.n_others == 0
    assert f"{found.ties.n_ties} ties, for which gradients" in str(found)


@pytest.mark.parametrize("image", [FLAT, torch.randint_like(FLAT, 256)])
def test_a_pool_that_picks_wrong_positions_is_no_tie(image: Tensor) -> None:
    """Not even where the numbers there are equal."""
    with switching.accelerated():
        found = ptac.verify(Placed(shift=1), image)
    assert not found
    (row,) = [r for r in found.rows if r.name == "grad place"]
    assert not row.passes
    assert found.ties
    assert found.ties.n_others > 1000
    assert f"{found.ties.n_others} faults" in str(found)


def test_what_changes_from_run_to_run_is_excused_nothing() -> None:
    """A kernel that is wrong at times only is wrong."""
    calls = []

    def change(y: Tensor) -> Tensor:
        calls.append(y)
        return 2 * y if len(calls) == 1 else y

    with switching.accelerated("max_pool2d"):
        assert not ptac.verify(when_accelerated(change), torch.randn(5000))
    assert len(calls) == 2


def test_models_that_refuse_other_numbers_are_judged_by_what_there_is() -> None:
    x = torch.randn(5000)

    def model(given: Tensor) -> Tensor:
        if not torch.equal(given.float(), x):
            raise ValueError
        y = torch.tanh(given)
        return y if is_stock() else 2 * y

    with switching.accelerated("max_pool2d"):
        assert not ptac.verify(model, x)


def test_exact_means_bits() -> None:
    def nudge(y: Tensor) -> Tensor:
        return torch.nextafter(y, torch.zeros(()))

    with switching.accelerated("max_pool2d", numerics="exact"):
        assert not ptac.verify(when_accelerated(nudge), torch.randn(5000))
        assert not ptac.verify(when_accelerated(torch.neg), torch.zeros(100))


def test_gradients_that_are_missing() -> None:
    def cut(y: Tensor) -> Tensor:
        return y.detach()

    x = torch.randn(500, requires_grad=True)
    with switching.accelerated("max_pool2d"):
        found = ptac.verify(when_accelerated(cut), x)
    assert not found
    assert "grad input 0" in str(found)
    assert "only stock gives it" in str(found)


def test_no_reference_is_said() -> None:
    """Models that fix a dtype, and random ones, cannot be compared with float64."""

    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return noise(x.float() @ torch.ones(8, 8))

    def noise(y: Tensor) -> Tensor:
        return y if is_stock() else y * (1 + 1e-6)

    def refuse(x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise ValueError("float32 only, please\nand a second line")
        return noise(x)

    def random(x: Tensor) -> Tensor:
        return noise(torch.rand_like(x))

    x = torch.randn(16, 8)
    with switching.accelerated("max_pool2d"):
        found = ptac.verify(refuse, x)
        assert found
        assert found.float64_error == "ValueError: float32 only, please"
        assert "no float64 reference: ValueError" in str(found)
        assert found.rows[0].note == "no reference"
        found = ptac.verify(random, x)
        assert found.float64_error is None
        assert "no reference" in str(found)
        # Computes in float32 whatever comes: its reference is stock's result.
        assert ptac.verify(Fixed(), x).rows[0].note == ""


def test_backward_is_optional() -> None:
    x = torch.randn(500, requires_grad=True)
    found = ptac.verify(torch.tanh, x, backward=False)
    assert [r.name for r in found.rows] == ["output"]


def test_a_model_without_tensors() -> None:
    found = ptac.verify(lambda _: 1, torch.randn(9))
    assert not found
    assert "no tensors to compare" in str(found)


def test_what_was_not_accelerated_is_said() -> None:
    found = ptac.verify(torch.tanh, torch.randn(9))
    assert found
    assert found.accelerated == 0
    assert "nothing ran accelerated" in str(found)


def test_stock_s_part_is_not_counted() -> None:
    """It would stand in the report as calls that the program had run stock."""
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
    with switching.accelerated():
        hits = [switching.hits(op) for op in ("conv2d", "max_pool2d")]
        assert ptac.verify(model, torch.randn(4, 8, 20, 20, requires_grad=True))
        assert all(h.accelerated and not h.forwarded for h in hits), hits


UNUSUAL_RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "jagged": lambda x: nested.nested_tensor([x, x[:3]], layout=torch.jagged),
    "nested": lambda x: nested.nested_tensor([x, x[:3]]),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("kind", UNUSUAL_RESULTS)
def test_results_of_any_layout_and_type_are_compared(kind: str) -> None:
    result, x = UNUSUAL_RESULTS[kind], torch.rand(64, 64)
    with switching.accelerated():
        assert ptac.verify(result, x)
        changed = when_accelerated(lambda t: t + 1)
        assert not ptac.verify(lambda x: result(changed(x)), x)


def test_gradients_may_be_sparse() -> None:
    model = nn.Sequential(nn.Embedding(1000, 64, sparse=True), nn.Linear(64, 64))
    assert ptac.verify(model, torch.randint(0, 1000, (64, 16)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_compared_whatever_mode_it_is_called_in(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    with mode():
        found = ptac.verify(nn.Linear(64, 64), torch.randn(64, 64))
    assert found
    assert "grad weight" in {r.name for r in found.rows}


def test_the_module_of_a_method_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = ptac.verify(model.forward, torch.randn(4, 3, 16, 16))
    assert found
    assert "grad 0.weight" in {r.name for r in found.rows}
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("op", [*contract.LISTS, "scatter_reduce", "scatter"])
def test_verify_has_calls_of_operators_on_lists_and_rows(op: str) -> None:
    rows = next(rows for name, _, rows in ptac._C.operators() if name == op)
    asked = [(row, level) for row, level, can_run, _ in rows if can_run]
    assert asked
    for row, level in asked:
        verdict = contract._check(ptac._C, op, row, level)
        assert verdict.calls >= 3
        assert not verdict.broken
