"""bernoulli_() of CPU tensors: torch's stream, and generators as torch leaves them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import internals
import pytest
import switching
import torch
from torch import Generator, Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import pai_torchacc as ptac
from pai_torchacc import _C

OP = "bernoulli"

PROBABILITIES = (0.5, 0.9, 1 - 0.1, 1 / 3, 2.0**-21, 2.0**-40, 5e-324, 0.0, 1.0)
LENGTHS = (1, 7, 16, 33, 311, 312, 313, 624, 1000, 5000)

rows = pytest.mark.parametrize("row", switching.runnable_rows(OP))

pytestmark = pytest.mark.skipif(
    OP not in {op for _, op in _C.override_names()}, reason="no override on this CPU"
)


def generator(seed: int, n_drawn: int) -> Generator:
    """One that so many words have been drawn from."""
    made = Generator().manual_seed(seed)
    torch.empty(n_drawn, dtype=torch.int32).random_(generator=made)
    return made


def draws(p: float) -> list[Tensor]:
    """What is drawn in a row, and the states at the end."""
    torch.manual_seed(17)
    explicit = [generator(s, s % 700) for s in (1, 624, 2**33)]
    found = [torch.empty(n).bernoulli_(p) for n in LENGTHS]
    found += [torch.empty(n).bernoulli_(p, generator=explicit[0]) for n in LENGTHS]
    found += [
        torch.empty(n).bernoulli_(p, generator=g) for n in (3, 700) for g in explicit
    ]
    found += [torch.rand(5), torch.randn(20), torch.randperm(9)]  # what comes next
    return [*found, torch.get_rng_state(), *(g.get_state() for g in explicit)]


@pytest.mark.parametrize("p", PROBABILITIES)
@rows
def test_numbers_and_states_are_stocks(row: str, p: float) -> None:
    expected = draws(p)
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        found = draws(p)
    assert hits.accelerated == 2 * len(LENGTHS) + 6
    assert not hits.forwarded
    assert all(map(torch.equal, found, expected))


def changes_of_state() -> list[Tensor]:
    found = []

    def draw(n: int = 345) -> None:
        found.append(torch.empty(n).bernoulli_(0.3))

    torch.manual_seed(3)
    draw()
    middle = torch.get_rng_state()
    draw(3)
    with torch.random.fork_rng():
        draw()
        torch.manual_seed(4)
        draw()
    draw()
    torch.set_rng_state(middle)
    draw()
    torch.default_generator.set_state(generator(5, 623).get_state())
    draw()
    own, twin = generator(6, 1), generator(6, 0).clone_state()
    found.append(torch.empty(400).bernoulli_(0.4, generator=own))
    found.append(torch.empty(400).bernoulli_(0.4, generator=twin))
    return [*found, torch.get_rng_state(), own.get_state(), twin.get_state()]


def test_states_that_programs_set() -> None:
    expected = changes_of_state()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert all(map(torch.equal, changes_of_state(), expected))
    assert hits.accelerated == 9


def test_library_code_is_served() -> None:
    x = torch.randn(4, 6, 8, 8)
    modules = (
        *(nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.3), nn.Dropout2d(0.4)),
        *(nn.Dropout1d(0.5), nn.Dropout(0.1, inplace=True)),
    )

    def results() -> list[Tensor]:
        torch.manual_seed(0)
        found = [m(x[0].clone() if "1d" in str(m) else x.clone()) for m in modules]
        found.append(torch.bernoulli(x, 0.25))  # makes a tensor, and draws in it
        q = x[:, :, :, :4]
        found.append(nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3))
        return [*found, torch.get_rng_state()]

    expected = results()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert all(map(torch.equal, results(), expected))
    assert hits.accelerated >= len(modules)


REFUSED: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "strided": ("layout", lambda: torch.zeros(40, 2)[:, 0]),
    "transposed": ("layout", lambda: torch.zeros(5, 7).t()),
    "double": ("dtype", lambda: torch.zeros(40, dtype=torch.float64)),
    "bfloat16": ("dtype", lambda: torch.zeros(40, dtype=torch.bfloat16)),
    "bool": ("dtype", lambda: torch.zeros(40, dtype=torch.bool)),
    "integer": ("dtype", lambda: torch.zeros(40, dtype=torch.int64)),
    "empty": ("empty", lambda: torch.zeros(0, 4)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_stock_draws(what: str) -> None:
    reason, make = REFUSED[what]
    torch.manual_seed(1)
    expected, state = make().bernoulli_(0.4), torch.get_rng_state()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        torch.manual_seed(1)
        assert torch.equal(make().bernoulli_(0.4), expected)
    assert hits.forwarded == {reason: 1}
    assert torch.equal(torch.get_rng_state(), state)


def test_views_without_gaps_are_served() -> None:
    base = torch.zeros(6, 50)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert base[2].bernoulli_(1.0)._base is base
        assert base[4:].view(5, 20).bernoulli_(1.0).data_ptr() == base[4].data_ptr()
    assert hits.accelerated == 2
    assert base.sum(1).tolist() == [0, 0, 50, 0, 50, 50]
    assert base._version == 2


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), float("inf")])
def test_wrong_probabilities_get_torchs_own_error(p: float) -> None:
    def said() -> str:
        with pytest.raises(RuntimeError) as error:
            torch.zeros(9).bernoulli_(p)
        return str(error.value)

    stock = said()
    with switching.accelerated(OP):
        assert said() == stock
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.zeros(1).expand(5).bernoulli_(0.5)


def chunks_by_threads(n_threads: int, n_chunks: int, size: int) -> tuple[Any, Tensor]:
    shared = generator(9, 1)
    chunks: list[Tensor] = []

    def draw() -> None:
        for _ in range(n_chunks):
            chunks.append(torch.empty(size).bernoulli_(0.5, generator=shared))

    threads = [threading.Thread(target=draw) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return chunks, shared.get_state()


def test_threads_share_one_generator() -> None:
    """Each call gets a stretch of the stream that no other call gets."""
    n_threads, n_chunks, size = 3, 60, 401
    twin = generator(9, 1)
    stream = torch.empty(n_threads * n_chunks, size)
    for chunk in stream:
        chunk.bernoulli_(0.5, generator=twin)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        chunks, state = chunks_by_threads(n_threads, n_chunks, size)
    assert hits.accelerated == n_threads * n_chunks
    assert torch.equal(state, twin.get_state())
    numbers = sorted(tuple(c.tolist()) for c in chunks)
    assert numbers == sorted(tuple(c.tolist()) for c in stream)


def test_forked_processes_draw_on() -> None:
    def in_child() -> list[float]:
        reader, writer = os.pipe()
        if pid := os.fork():
            os.close(writer)
            with os.fdopen(reader) as pipe:
                found = json.load(pipe)
            os.waitpid(pid, 0)
            return list(found)
        try:
            numbers = torch.empty(500).bernoulli_(0.5).tolist()
            after = torch.get_rng_state().tolist()
            os.write(writer, json.dumps([*numbers, *after]).encode())
        finally:
            os._exit(0)

    torch.manual_seed(2)
    expected = in_child()
    with switching.accelerated(OP):
        torch.manual_seed(2)
        assert in_child() == expected


class Noisy(torch.utils.data.Dataset[Tensor]):
    """Samples that workers draw."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Tensor:
        return torch.empty(700).bernoulli_(0.5)


def test_workers_of_a_loader() -> None:
    def batches() -> list[Tensor]:
        torch.manual_seed(8)
        return list(DataLoader(Noisy(), 2, num_workers=1))

    expected = batches()
    with switching.accelerated(OP):
        assert all(map(torch.equal, batches(), expected))


class Seen(TorchDispatchMode):
    """Calls every operator boxed, with the generator among the arguments."""

    names: ClassVar[list[str]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_boxed_calls_are_torchs() -> None:
    def drawn() -> Tensor:
        with Seen():
            return torch.empty(90).bernoulli_(0.5, generator=generator(1, 5))

    expected = drawn()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert torch.equal(drawn(), expected)
    assert not hits.accelerated
    assert "aten.bernoulli_.float" in Seen.names


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_vmap(randomness: str) -> None:
    def drawn() -> list[Tensor]:
        torch.manual_seed(6)
        f = torch.vmap(lambda x: x.clone().bernoulli_(0.5), randomness=randomness)
        return [f(torch.zeros(5, 80)), torch.get_rng_state()]

    expected = drawn()
    with switching.accelerated(OP):
        assert all(map(torch.equal, drawn(), expected))


def test_fake_and_meta_tensors_draw_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with switching.accelerated(OP):
        state = torch.get_rng_state()
        with FakeTensorMode():
            assert torch.empty(50).bernoulli_(0.5).shape == (50,)
        torch.empty(50, device="meta").bernoulli_(0.5)
        assert torch.equal(torch.get_rng_state(), state)


def test_shadow_checks_draw_once() -> None:
    expected = draws(0.7)
    with switching.accelerated(OP, verify=1):
        hits = switching.hits(OP)
        assert all(map(torch.equal, draws(0.7), expected))
    assert hits.accelerated >= 20
    assert not hits.failed
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


def test_a_row_that_breaks_has_drawn_nothing() -> None:
    torch.manual_seed(1)
    expected = torch.empty(400).bernoulli_(0.5)
    try:
        with switching.accelerated(OP):
            hits = switching.hits(OP)
            internals.inject_failure(OP)
            torch.manual_seed(1)
            assert torch.equal(torch.empty(400).bernoulli_(0.5), expected)
            assert hits.failed == 1
    finally:
        internals.reset_quarantine()


def test_kernels_of_others_come_and_go() -> None:
    """Theirs is called while there; then stock, as torch writes its tables anew."""
    with switching.accelerated(OP):
        library = torch.library.Library("aten", "IMPL")
        library.impl("bernoulli_.float", lambda x, *_, **__: x.fill_(7), "CPU")
        assert torch.zeros(3).bernoulli_(0.5).tolist() == [7, 7, 7]
        library._destroy()
        expected = torch.empty(400).bernoulli_(0.5, generator=generator(2, 0))
        with switching.accelerated(OP):
            hits = switching.hits(OP)
            found = torch.empty(400).bernoulli_(0.5, generator=generator(2, 0))
        assert hits.accelerated == 1
        assert torch.equal(found, expected)
    hits = switching.hits(OP)
    assert torch.equal(
        torch.empty(400).bernoulli_(0.5, generator=generator(2, 0)), found
    )
    assert not hits.accelerated


@pytest.mark.parametrize("hidden", ["default_cpu_generator", "c10_find_operator"])
def test_without_what_it_rests_on_stock_draws(hidden: str) -> None:
    program = f"""
import torch, switching
torch.manual_seed(1)
expected = torch.empty(900).bernoulli_(0.5)
with switching.accelerated():
    for _ in range(2):
        torch.manual_seed(1)
        assert torch.equal(torch.empty(900).bernoulli_(0.5), expected)
    hits = switching.hits("bernoulli"), switching.hits("dropout")
    torch.nn.functional.dropout(torch.zeros(900), 0.5)
    is_proved = {hidden!r} != "default_cpu_generator"
    assert hits[0].accelerated == 0
    assert hits[1].accelerated == is_proved, hits
    assert is_proved or hits[1].forwarded == {{"numerics level": 1}}, hits
"""
    switching.python(program, PTAC_HIDE_SYMBOLS=hidden)


def test_enabling_leaves_the_programs_generators_alone() -> None:
    program = """
import torch, random, switching
import pai_torchacc as ptac
torch.manual_seed(5)
before = torch.get_rng_state(), random.getstate()
with ptac.enable():
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
assert torch.equal(torch.get_rng_state(), before[0])
"""
    switching.python(program, fresh=True)


def test_switching_while_others_draw() -> None:
    """Each thread has a generator of its own, whose stream does not notice."""
    n, size = 150, 700
    expected = torch.stack(
        [torch.empty(size).bernoulli_(0.5, generator=g) for g in [generator(3, 0)] * n]
    )
    results: list[Tensor] = []

    def draw() -> None:
        own = generator(3, 0)
        drawn = [torch.empty(size).bernoulli_(0.5, generator=own) for _ in range(n)]
        results.append(torch.stack(drawn))

    threads = [threading.Thread(target=draw) for _ in range(2)]
    with switching.pins([OP]):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            ptac.enable(include=[OP])
            ptac.disable()
    assert len(results) == 2
    assert all(torch.equal(r, expected) for r in results)
