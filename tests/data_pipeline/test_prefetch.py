"""``prefetch``: the loader's own batches, ahead of time where nobody can tell."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import loading
import own_datasets as own
import pytest
import switching
import test_workers as workers
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pai_torchacc as ptac
from pai_torchacc.data_pipeline.prefetching import Prefetched

N = 50


def dataset() -> TensorDataset:
    return TensorDataset(torch.arange(N * 3.0).view(N, 3), torch.arange(N))


def threads() -> int:
    return sum(t.name == "pai_torchacc prefetch" for t in threading.enumerate())


def assert_same(make: Any, depth: int = 2, reason: str | None = None) -> None:
    """With a program that draws random numbers between batches."""

    def run(loader: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(4)
        found = []
        for _ in range(2):
            for batch in loader:
                found += [batch, torch.rand(2)]
        return found, torch.get_rng_state()

    theirs, after = run(make())
    loader = ptac.prefetch(make(), depth=depth)
    assert (loader.reason is None) == (reason is None), loader.reason
    if reason:
        assert reason in loader.reason
    ours, then = run(loader)
    assert len(ours) == len(theirs)
    assert all(map(loading.is_same, ours, theirs))
    assert torch.equal(after, then)


NO_WORKERS = "without workers"


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
def test_batches_are_the_same(depth: int) -> None:
    def make() -> Any:
        return workers.loader(dataset(), 8, workers=1, shuffle=True)

    assert_same(make, depth)
    with ptac.enable_data_pipeline():
        assert_same(make, depth)


def test_with_workers() -> None:
    with ptac.enable_data_pipeline():
        assert_same(lambda: workers.loader(workers.Samples(), 8, shuffle=True))
    assert_same(lambda: workers.loader(workers.Samples(), 8, shuffle=True))


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.rand(20))


class Drawing(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch[0] + torch.rand(1)


def test_where_it_would_shift_numbers() -> None:
    """Code of the user's in this process, samplers of one's own: nothing is ahead."""
    context = {"num_workers": 1, "multiprocessing_context": workers.FORK}
    for data, options, reason in (
        (dataset(), {"shuffle": True}, NO_WORKERS),
        (own.Random(), {}, NO_WORKERS),
        (dataset(), {"sampler": [1, 2, 3], **context}, "sampler"),
        (Numbers(), context, "sampler"),
    ):
        assert_same(
            lambda data=data, options=options: DataLoader(data, 8, **options),
            reason=reason,
        )
    assert_same(lambda: Drawing(dataset(), 8, **context), reason="class iterates")
    generator = torch.Generator()
    own_generator = DataLoader(
        dataset(), 8, shuffle=True, generator=generator, **context
    )
    assert ptac.prefetch(own_generator).reason == "a sampler of one's own"
    assert ptac.prefetch([1, 2]).reason == "this is no DataLoader"
    assert list(ptac.prefetch([1, 2])) == [1, 2]


def test_it_is_the_loader_to_all_who_ask() -> None:
    loader = DataLoader(dataset(), 8, shuffle=True)
    ahead = ptac.prefetch(loader)
    assert isinstance(ahead, Prefetched)
    assert len(ahead) == len(loader) == 7
    assert ahead.dataset is loader.dataset
    assert ahead.batch_size == 8
    assert ahead.sampler is loader.sampler
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ahead.nothing  # noqa: B018


def test_early_ends_and_two_iterators() -> None:
    """A thread ends with the iteration that it is for."""
    loader = ptac.prefetch(workers.loader(dataset(), 4, workers=1))
    for i, _batch in enumerate(loader):
        if i == 2:
            break
    first, second = iter(loader), iter(loader)
    pairs = [(next(first), next(second)) for _ in range(5)]
    assert all(loading.is_same(*pair) for pair in pairs)
    assert threads() >= 2
    del first, second
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "pai_torchacc prefetch":
            thread.join(10)
    assert threads() == 0


def test_errors_come_in_their_place() -> None:
    loader = ptac.prefetch(workers.loader(workers.Failing("raise"), 5), depth=3)
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator)[0, 0].item())
        except StopIteration:
            break
        except KeyError:
            found.append("error")
    assert found == [0, 5, 10, "error", 20, 25, 30, 35]
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_loader_is_let_go() -> None:
    iterator = iter(ptac.prefetch(workers.loader(dataset(), 4, workers=1)))
    next(iterator)
    inner = weakref.ref(iterator.shared)  # type: ignore[attr-defined]
    del iterator
    for thread in threading.enumerate():
        if thread.name == "pai_torchacc prefetch":
            thread.join(10)
    gc.collect()
    assert inner() is None


def test_devices() -> None:
    loader = workers.loader(dataset(), 8, workers=1)
    for (x, y), (u, v) in zip(ptac.prefetch(loader, "cpu"), loader, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    for x, y in ptac.prefetch(loader, torch.device("meta")):
        assert (x.device.type, y.device.type) == ("meta", "meta")
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA|cuda"):
            next(iter(ptac.prefetch(loader, "cuda")))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3,), TypeError, "loader is an iterable, not int"),
        (([], None, 0), ValueError, "depth=0; it is 1 or more"),
        (([], None, "2"), TypeError, "depth is an integer, not str"),
        (([], None, True), TypeError, "depth is an integer, not bool"),
        (([], "nothing"), RuntimeError, "device"),
    ],
)
def test_wrong_use(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ptac.prefetch(*arguments)


def test_modes_are_those_of_the_program() -> None:
    def batches() -> list[Any]:
        return list(ptac.prefetch(workers.loader(dataset(), 8, workers=1)))

    with torch.inference_mode():
        assert all(x.is_inference() for x, _ in batches())
    assert not any(x.is_inference() for x, _ in batches())


def test_no_first_batch() -> None:
    """None, or an error in its place: the iterator goes on as the loader's does."""
    empty = iter(ptac.prefetch(workers.loader(dataset(), 64, drop_last=True)))
    assert next(empty, "none") == "none"
    assert next(empty, "none") == "none"
    failing = workers.Failing("raise")
    sampler = torch.utils.data.Subset(failing, list(range(15, 40)))
    iterator = iter(ptac.prefetch(workers.loader(sampler, 5)))
    with pytest.raises(KeyError, match="seventeen"):
        next(iterator)
    assert next(iterator)[0, 0].item() == 20


def test_persistent_workers_after_an_early_end() -> None:
    made = workers.loader(dataset(), 4, persistent_workers=True)
    loader = ptac.prefetch(made)
    for _ in range(3):
        for i, _batch in enumerate(loader):
            if i == 2:
                break
    assert torch.equal(torch.cat([y for _, y in loader]), torch.arange(N))


def test_the_program_may_end_in_the_midst() -> None:
    program = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import multiprocessing
import pai_torchacc as ptac
data = TensorDataset(torch.ones(4000, 500))
fork = multiprocessing.get_context("fork")
loader = DataLoader(data, 50, num_workers=1, multiprocessing_context=fork)
iterator = iter(ptac.prefetch(loader))
for _ in range(5):
    next(iterator)
print("end")
"""
    assert switching.python(program) == "end\n"
