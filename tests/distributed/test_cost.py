"""The model of what collectives cost, and ``tune_fsdp``, which rests on none."""

from __future__ import annotations

from pathlib import Path

import gloo_ranks as ranks
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pai_torchacc as ptac
from pai_torchacc.distributed import cost
from pai_torchacc.distributed.cost import Line, Ring, Step

ALPHAS = st.floats(1e-6, 1e-1)
BETAS = st.floats(1e-12, 1e-6)


@given(ALPHAS, BETAS)
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    line = Line(alpha, beta)
    points = [(n, line.seconds(n)) for n in (1 << 10, 1 << 16, 1 << 20, 1 << 24)]
    found = Line.fit(points)
    assert max(found.error(*point) for point in points) < 1e-6
    assert cost.median_error(found, points) < 1e-6


@given(ALPHAS, BETAS, st.integers(2, 512))
def test_a_ring_is_found_again_from_any_number_of_ranks(
    alpha: float, beta: float, n: int
) -> None:
    ring = Ring(Line(alpha, beta))
    found = Ring.of(ring.allreduce(n), n)
    assert found.message.alpha_s == pytest.approx(alpha)
    assert found.message.beta_s_per_byte == pytest.approx(beta)


def test_numbers_of_a_ring() -> None:
    """Two ranks send two messages of half the bytes, many nearly twice the bytes."""
    ring = Ring(Line(1e-3, 1e-9))
    assert ring.allreduce(2).seconds(2000) == pytest.approx(2e-3 + 2e-6)
    assert ring.allreduce(1).seconds(1000) == 0
    assert ring.allreduce(512).beta_s_per_byte == pytest.approx(2e-9 * 511 / 512)


def test_neither_number_is_negative() -> None:
    assert Line.fit([(1, 1.0), (2, 0.5)]).beta_s_per_byte == 0
    assert Line.fit([(1, 1.0), (2, 4.0)]).alpha_s == 0


@pytest.mark.parametrize(
    "points", [[], [(4, 1.0)], [(4, 1.0), (4, 2.0)], [(1, 0), (2, 1)]]
)
def test_too_little_for_a_line(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="two sizes"):
        Line.fit(points)


def test_steps_hide_what_they_can() -> None:
    ring, step = Ring(Line(0.0, 1e-9)), Step(0.1, 100_000_000)
    assert step.seconds(ring, 1) == 0.1
    assert step.seconds(ring, 2) == pytest.approx(0.2)
    assert step.seconds(ring, 2, overlap=0.5) == pytest.approx(0.15)
    assert step.efficiency(ring, 2, overlap=1.0) == pytest.approx(1.0)


def test_buckets() -> None:
    """Small models and slow starts have DDP's own; between 4 and 25 MiB otherwise."""
    mib = cost.MIB
    assert cost.bucket_bytes(Line(1e-4, 8e-9), 4 * mib) is None
    assert cost.bucket_bytes(Line(1e-4, 8e-9), 25 * mib) == 4 * mib
    assert cost.bucket_bytes(Line(10.0, 8e-9), 25 * mib) is None
    between = cost.bucket_bytes(Line(0.02, 8e-9), 25 * mib)
    assert between == pytest.approx((0.02 * 25 * mib / 8e-9) ** 0.5, abs=1)
    assert cost.bucket_bytes(Line(1e-4, 0.0), 25 * mib) is None


def test_sixty_percent_take_three_ideal_devices() -> None:
    assert [cost.ideal_devices(s) for s in (0, 0.5, 0.6, 2 / 3, 0.75)] == [
        1,
        2,
        3,
        3,
        4,
    ]
    with pytest.raises(ValueError, match="time_saved"):
        cost.ideal_devices(1)


def test_bubbles() -> None:
    assert cost.bubble(1, 8) == 0
    assert cost.bubble(4, 1) == 0.75
    assert cost.bubble(4, 13) == pytest.approx(3 / 16)


SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))

def make(**options):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)], nn.Linear(64, 4))
    for layer in model[:3]:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh)

def gathered(model):
    out = model(torch.ones(2, 64))
    found = [type(layer.weight).__name__ for layer in model[:3]]
    out.sum().backward()
    return found

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).square().sum().backward()
        optimizer.step()
    return [p.to_local().clone() for p in model.parameters()]

stock, model = train(make()), make()
n_bytes = (64 * 64 + 64) * 4
found = ptac.tune_fsdp(model)
assert (found.kept, found.possible_bytes) == ([], 3 * n_bytes), found
assert gathered(model) == ["DTensor"] * 3
tuning = ptac.tune_fsdp(model, keep=2 * n_bytes + 1)
assert tuning.kept == ["2", "1"] and tuning.kept_bytes == 2 * n_bytes, tuning
assert gathered(model) == ["DTensor", "Parameter", "Parameter"]
model.zero_grad()
assert all(torch.equal(a, b) for a, b in zip(train(model), stock, strict=True))
tuning.disable()
assert gathered(model) == ["DTensor"] * 3
with ptac.tune_fsdp(model, keep=1 << 30) as tuning:
    assert gathered(model) == ["Parameter"] * 3
assert gathered(model) == ["DTensor"] * 3
asked = make(reshard_after_forward=True)
assert ptac.tune_fsdp(asked, keep=1 << 30).possible_bytes == 0
dist.destroy_process_group()
"""


@pytest.mark.long
def test_tune_fsdp(tmp_path: Path) -> None:
    ranks.run(SHARDED, 2, tmp_path)


def test_tune_fsdp_of_something_else() -> None:
    import torch

    with pytest.raises(TypeError, match="fully_shard"):
        ptac.tune_fsdp(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="keep"):
        ptac.tune_fsdp(torch.nn.Linear(2, 2), keep=-1)
