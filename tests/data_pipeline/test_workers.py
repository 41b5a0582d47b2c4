"""Worker processes: the ring, and everything that may happen to workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import loading
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import pai_torchacc as ptac
from pai_torchacc.data_pipeline import ring, stand_ins, waiting

# Since Python 3.14 another method than fork is the default.
FORK = multiprocessing.get_context("fork")
N = 40


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(N, 3, 5, generator=generator), torch.arange(N))


def loader(data: Any, batch: int | None = 8, workers: int = 2, **options: Any) -> Any:
    options.setdefault("multiprocessing_context", FORK)
    return DataLoader(data, batch, num_workers=workers, **options)


def through_ring(make: Any, expected: int | None = None, n: int = 1) -> None:
    """Batches are the same, and all, or as many as expected, went through the ring."""
    (entry,) = loading.assert_same(make, at_once=True, n=n)
    assert entry.through_ring == (entry.batches if expected is None else expected)


Point = namedtuple("Point", ["x", "y"])


class Samples(Dataset[Any]):
    """Samples of every kind that the default collate function takes, by own code."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        generator = np.random.default_rng(i)
        return {
            "tensor": torch.arange(6).view(2, 3) * i,
            "array": generator.random((2, 2)),
            "float": i / 3,
            "int": i,
            "bool": i % 2 == 0,
            "text": f"sample {i}",
            "bytes": b"b",
            "point": Point(torch.rand(2), [np.float32(i), torch.randn(1).item()]),
            "empty": torch.empty(0, 3),
            "permuted": torch.randn(4, 5).t(),
            "half": torch.randn(3).half(),
            "complex": torch.randn(2, dtype=torch.complex64),
        }


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_tensors(shuffle: bool, workers: int) -> None:
    data = dataset()
    through_ring(lambda: loader(data, workers=workers, shuffle=shuffle))


def test_samples_of_all_kinds() -> None:
    through_ring(lambda: loader(Samples(), 7, shuffle=True))


@pytest.mark.parametrize(
    "options",
    [
        {"persistent_workers": True},
        {"prefetch_factor": 5},
        {"drop_last": True},
        {"batch_size": 1},
        {"batch_size": N},
        {"in_order": False, "workers": 1},
        {"generator": torch.Generator()},
        {"worker_init_fn": torch.manual_seed},
    ],
)
def test_options(options: dict[str, Any]) -> None:
    batch = options.pop("batch_size", 6)

    def make() -> Any:
        if "generator" in options:
            options["generator"].manual_seed(4)
        return loader(Samples(), batch, **options)

    through_ring(make, n=2)


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(20.0))


def collate(samples: list[Any]) -> Any:
    return torch.stack([s[0] for s in samples])


def test_what_is_left_to_stock() -> None:
    """Iterable datasets, collate functions of one's own, no batches, other methods."""
    data = dataset()

    def by_stock(make: Any, reason: str) -> None:
        (entry,) = loading.assert_same(make, at_once=None, n=1)
        assert entry.reasons == {reason: entry.batches}

    by_stock(lambda: loader(Numbers(), 4), "an iterable dataset")
    own = "a collate function of one's own"
    by_stock(lambda: loader(data, collate_fn=collate), own)
    by_stock(lambda: loader(data, None), "no batches are asked for")
    spawned = loader(data, N, multiprocessing_context="spawn")
    with ptac.enable_data_pipeline():
        assert stand_ins._ring_for(spawned) is None
        assert stand_ins._ring_for(loader(data, N)) is not None


def test_batches_larger_than_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "SLOT_BYTES", 4096)
    data = TensorDataset(torch.randn(N, 400), torch.arange(N))
    # Of each batch the labels still have room, and all of the smaller last one.
    through_ring(lambda: loader(data, 16))
    large = TensorDataset(torch.randn(N, 2000))
    through_ring(lambda: loader(large, 16), 0)


def test_slots_that_are_held() -> None:
    """The program holds on to all batches: they are copies, and slots go round."""
    data = TensorDataset(torch.arange(800.0).view(200, 4))
    with ptac.enable_data_pipeline():
        batches = [x for (x,) in loader(data, 4)]
        iterator = iter(loader(data, 4))
        next(iterator)
        kept = list(iterator)
    assert torch.equal(torch.cat(batches), data.tensors[0])
    assert len(kept) == 49


def test_early_ends_give_slots_back() -> None:
    data = TensorDataset(torch.arange(800.0).view(200, 4))
    with ptac.enable_data_pipeline():
        waiting.reset()
        made = loader(data, 4, persistent_workers=True)
        for _ in range(6):
            for i, _batch in enumerate(made):
                if i == 2:
                    break
        batches = [x for (x,) in made]
        (entry,) = waiting.loaders()
    assert torch.equal(torch.cat(batches), data.tensors[0])
    assert entry.through_ring == entry.batches == 6 * 3 + 50


class Failing(Dataset[Any]):
    def __init__(self, how: str):
        self.how = how

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        if i == 17 and self.how == "raise":
            raise KeyError("sample seventeen")
        if i == 17 and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 17 and self.how == "exit":
            os._exit(3)
        return torch.full((100,), float(i))


def test_errors_of_workers() -> None:
    """The error's kind and text; the loader goes on behind it as stock's does."""
    texts = []
    for is_on in (False, True):
        if is_on:
            ptac.enable_data_pipeline()
        found: list[Any] = []
        iterator = iter(loader(Failing("raise"), 5))
        while True:
            try:
                found.append(next(iterator)[0, 0].item())
            except StopIteration:
                break
            except KeyError as error:
                found.append(str(error).splitlines()[0])
        texts.append(found)
    ptac.disable()
    assert texts[0] == texts[1]
    assert any(
        "Caught KeyError in DataLoader worker process" in str(t) for t in texts[1]
    )


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_workers_that_die(how: str) -> None:
    with (
        ptac.enable_data_pipeline(),
        pytest.raises(RuntimeError, match=r"worker.* exited unexpectedly|killed by"),
    ):
        list(loader(Failing(how), 5))


def descriptors() -> int:
    """Those that are open when threads that close their queue's have ended."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(timeout=10)
    return len(list(Path("/proc/self/fd").iterdir()))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("/dev/zero (deleted)")


def test_nothing_is_left_behind() -> None:
    """No descriptor, no mapping, no file of shared memory, no process."""
    data = dataset()

    def epoch() -> None:
        for i, _ in enumerate(loader(data, 4)):
            if i == 5:
                break

    with ptac.enable_data_pipeline():
        epoch()
        gc.collect()
        before = descriptors(), mappings(), set(Path("/dev/shm").iterdir())
        for _ in range(4):
            epoch()
        gc.collect()
        assert (descriptors(), mappings(), set(Path("/dev/shm").iterdir())) == before
    assert not multiprocessing.active_children()


def test_no_address_space() -> None:
    """Where the mapping cannot be had, batches go torch's way."""
    data = dataset()
    with ptac.enable_data_pipeline(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "SLOT_BYTES", 1 << 60)
        waiting.reset()
        batches = [x for x, _ in loader(data, 8)]
        (entry,) = waiting.loaders()
    assert torch.equal(torch.cat(batches), data.tensors[0])
    assert entry.through_ring == 0


def test_random_numbers_of_workers() -> None:
    """Each worker's own, also where what it draws is drawn in C."""
    import test_image_datasets as own

    transform = own.T.Compose([own.T.RandomCrop(20), own.T.ToTensor()])
    data = own.Images(own.pixels(32, 32, 3), transform)
    through_ring(lambda: loader(data, 8, shuffle=True))


class Inner(Dataset[Any]):
    """Each sample comes from a loader that the worker has."""

    def __init__(self) -> None:
        self.data = dataset()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return [x.sum() * i for x, _ in DataLoader(self.data, 20)]


def test_loaders_inside_of_workers() -> None:
    through_ring(lambda: loader(Inner(), 2))


def test_loaders_of_several_threads() -> None:
    """Rings of iterators whose workers start at the same time are not mixed up."""
    found: dict[int, Any] = {}

    def load(k: int) -> None:
        data = TensorDataset(torch.full((64, 50), float(k)))
        found[k] = torch.cat([x for (x,) in loader(data, 4)])

    with ptac.enable_data_pipeline():
        threads = [threading.Thread(target=load, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for k, values in found.items():
        assert values.shape == (64, 50)
        assert (values == k).all()
    assert len(found) == 4


def test_switched_off_under_way() -> None:
    data = dataset()
    expected = [x for x, _ in loader(data, 2)]
    ptac.enable_data_pipeline()
    iterator = iter(loader(data, 2))
    found = [next(iterator)[0]]
    ptac.disable()
    found += [x for x, _ in iterator]
    assert all(map(torch.equal, found, expected))


def test_messages_of_a_ring_that_is_gone() -> None:
    batch = ring.Batch(12345, 0, [])
    with pytest.raises(RuntimeError, match="after its loader had ended"):
        batch.open()


@pytest.mark.skipif(
    sys.version_info < (3, 14), reason="fork is the default before 3.14"
)
def test_the_default_method() -> None:
    through_ring(lambda: loader(dataset(), 8, multiprocessing_context=None), 0)
