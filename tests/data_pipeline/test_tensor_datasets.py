"""TensorDataset and subsets of it: gathered at once, bit for bit as by stock."""

from __future__ import annotations

import json
from typing import Any

import loading
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler

import pai_torchacc as ptac
from pai_torchacc.data_pipeline import waiting

N = 101
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64),
)


def tensors(*shapes: tuple[int, ...], n: int = N) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(n, *shape, generator=generator) for shape in shapes)


def dataset(n: int = N) -> TensorDataset:
    return TensorDataset(*tensors((3, 4), n=n), torch.arange(n))


@pytest.mark.parametrize("batch", [1, 7, 64, N])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_the_same(batch: int, shuffle: bool, drop_last: bool) -> None:
    data = dataset()

    def make() -> Any:
        return DataLoader(data, batch, shuffle=shuffle, drop_last=drop_last)

    loading.assert_same(make, at_once=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (2, 3, 4), (0,)])
def test_dtypes_and_shapes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(0, 2, (N, *shape), generator=generator).to(dtype)
    data = TensorDataset(values, torch.arange(N))
    has_elements = 0 not in shape
    loading.assert_same(lambda: DataLoader(data, 8, shuffle=True), at_once=has_elements)


@pytest.mark.parametrize(
    "source",
    [
        lambda: torch.randn(N, 8)[:, ::2],
        lambda: torch.randn(8, N).t(),
        lambda: torch.randn(N, 3, 5, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(1, 6).expand(N, 6),
        lambda: torch.randn(2 * N, 6)[::2],
        lambda: torch.randn(N, 6)[:, 1:4],
        lambda: torch.randn(N, 2).to_sparse(),
        lambda: torch.randn(N, 2, dtype=torch.complex64).conj(),
        lambda: torch.randn(N, 2).requires_grad_(),
    ],
)
def test_unusual_tensors(source: Any) -> None:
    """Rows without gaps are gathered, whatever lies between them; others by stock."""
    torch.manual_seed(5)
    tensor = source()
    rows = tensor[0] if tensor.layout is torch.strided else tensor
    is_plain = not (tensor.requires_grad or tensor.is_sparse or tensor.is_conj())
    at_once = bool(is_plain and rows.is_contiguous())
    data = TensorDataset(tensor)
    if tensor.is_sparse:
        with pytest.raises(RuntimeError, match="sparse"):
            loading.epochs(DataLoader(data, 8))
        with ptac.enable_data_pipeline(), pytest.raises(RuntimeError, match="sparse"):
            loading.epochs(DataLoader(data, 8))
        return
    loading.assert_same(lambda: DataLoader(data, 8, shuffle=True), at_once=at_once)


def test_samplers() -> None:
    data = dataset()
    generator = torch.Generator()
    samplers = [
        lambda: RandomSampler(data, replacement=True, num_samples=77),
        lambda: RandomSampler(data, num_samples=250),
        lambda: SubsetRandomSampler(range(5, 60)),
        lambda: WeightedRandomSampler([1.0] * 50 + [3.0] * 51, 40),
        lambda: DistributedSampler(data, num_replicas=2, rank=1, seed=4),
        lambda: [3, -1, 0, -N, N - 1],
        lambda: RandomSampler(data, generator=generator.manual_seed(9)),
    ]
    for sampler in samplers:
        loading.assert_same(
            lambda sampler=sampler: DataLoader(data, 16, sampler=sampler()),
            at_once=True,
        )
    last = []
    for is_on in (False, True):
        if is_on:
            ptac.enable_data_pipeline()
        loading.epochs(DataLoader(data, 16, sampler=samplers[-1]()))
        last.append(generator.get_state())
    ptac.disable()
    assert torch.equal(*last)
    batches = BatchSampler(SequentialSampler(data), 10, drop_last=True)
    loading.assert_same(lambda: DataLoader(data, batch_sampler=batches), at_once=True)
    lists = [[5, 1], [2], [7, 7, 7]]
    loading.assert_same(lambda: DataLoader(data, batch_sampler=lists), at_once=True)


def test_subsets() -> None:
    data = dataset()
    parts = random_split(data, [60, N - 60], torch.Generator().manual_seed(1))
    nested = Subset(Subset(data, range(10, 90)), [4, 4, 0, 79, 33, -1])
    for part in (*parts, nested, Subset(data, tuple(range(9)))):
        loading.assert_same(
            lambda part=part: DataLoader(part, 4, shuffle=True), at_once=True
        )
    indices = torch.randperm(N)
    by_tensor = Subset(data, indices)  # type: ignore[arg-type]
    loading.assert_same(lambda: DataLoader(by_tensor, 4), at_once=False)


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(2 * t for t in super().__getitem__(index))


class Kept(TensorDataset):
    """Overrides nothing of fetching."""

    def describe(self) -> str:
        return "kept"


class Batched(TensorDataset):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(t + 1 for t in self[i]) for i in indices]


class OtherSubset(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in reversed(indices)]


def test_subclasses() -> None:
    """One that overrides fetching is stock's; one that does not is gathered."""
    loading.assert_same(lambda: DataLoader(Kept(*tensors((4,))), 8), at_once=True)
    doubled = Doubled(*tensors((4,)))
    loading.assert_same(lambda: DataLoader(doubled, 8), at_once=False)
    reverse = OtherSubset(dataset(), list(range(30)))
    loading.assert_same(lambda: DataLoader(reverse, 8), at_once=False)
    with ptac.enable_data_pipeline(), pytest.raises(TypeError):
        loading.epochs(DataLoader(Batched(*tensors((4,))), 8))


def test_indices_that_are_none() -> None:
    """Stock raises its own error, or takes what only stock takes."""
    data = dataset()
    with ptac.enable_data_pipeline():
        with pytest.raises(IndexError, match="out of bounds"):
            list(DataLoader(data, batch_sampler=[[0, N]]))
        with pytest.raises(IndexError):
            list(DataLoader(Subset(data, [1, 2]), batch_sampler=[[0, 2]]))
    tensor_index = [[torch.tensor(3), torch.tensor(5)]]
    loading.assert_same(
        lambda: DataLoader(data, batch_sampler=tensor_index), at_once=False
    )
    loading.assert_same(lambda: DataLoader(data, batch_sampler=[[True]]), at_once=False)
    loading.assert_same(lambda: DataLoader(data, batch_sampler=[(1, 2)]), at_once=False)


def test_own_collate_functions_and_no_batches() -> None:
    data = dataset()

    def collate(samples: list[Any]) -> Any:
        return samples[::-1]

    def reasons(loader: Any) -> dict[str, int]:
        with ptac.enable_data_pipeline():
            waiting.reset()
            list(loader)
            (entry,) = waiting.loaders()
            assert entry.at_once + sum(entry.reasons.values()) == entry.batches
            return entry.reasons

    own = {"a collate function of one's own": 13}
    assert reasons(DataLoader(data, 8, collate_fn=collate)) == own
    assert reasons(DataLoader(data, None)) == {"no batches are asked for": N}
    batches = BatchSampler(SequentialSampler(data), 10, drop_last=False)
    assert reasons(DataLoader(data, None, sampler=batches)).keys() == {
        "no batches are asked for"
    }
    assert reasons(DataLoader(data, 8)) == {}
    older = iter(DataLoader(data, 8))
    assert reasons(older) == {"its iterator is older than the switch": 13}


def test_what_the_tensors_are_is_asked_each_time() -> None:
    """Written in place, replaced, grown: the next batch shows it."""
    data = dataset()
    seen = []
    for is_on in (False, True):
        if is_on:
            ptac.enable_data_pipeline()
        data.tensors = (torch.arange(N, dtype=torch.float32), torch.arange(N))
        found = []
        for i, (x, _) in enumerate(DataLoader(data, 10)):
            found.append(x.tolist())
            if i == 2:
                data.tensors[0].mul_(-1)
            if i == 5:
                data.tensors = tuple(t.double() + 0.5 for t in data.tensors)
        seen.append(found)
    ptac.disable()
    assert seen[0] == seen[1]


def test_batches_are_memory_of_their_own() -> None:
    data = TensorDataset(torch.zeros(N, 4))
    with ptac.enable_data_pipeline():
        for (x,) in DataLoader(data, 10):
            x.add_(1)
    assert not data.tensors[0].any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_modes(mode: Any) -> None:
    data = TensorDataset(torch.randn(N, 4, requires_grad=True))
    with mode():
        loading.assert_same(lambda: DataLoader(data, 10), at_once=True)


def test_toggling_under_way() -> None:
    """An iterator goes on with the same batches when the switch is turned."""
    data = dataset()
    expected, _ = loading.epochs(DataLoader(data, 8, shuffle=True), n=1)
    torch.manual_seed(3)
    found = []
    for i, batch in enumerate(DataLoader(data, 8, shuffle=True)):
        found.append(batch)
        ptac.enable_data_pipeline() if i % 2 else ptac.disable()
    assert all(map(loading.is_same, found, expected))
    ptac.enable_data_pipeline()
    torch.manual_seed(3)
    found = []
    for i, batch in enumerate(DataLoader(data, 8, shuffle=True)):
        found.append(batch)
        ptac.enable_data_pipeline() if i % 2 else ptac.disable()
    ptac.disable()
    assert len(found) == len(expected)
    assert all(map(loading.is_same, found, expected))


def test_disabled_in_this_thread() -> None:
    data = dataset()
    with ptac.enable_data_pipeline():
        waiting.reset()
        with ptac.disabled():
            list(DataLoader(data, 8))
        (entry,) = waiting.loaders()
    assert entry.at_once == 0
    assert any("disabled" in why for why in entry.reasons)


def test_two_iterators_and_early_ends() -> None:
    data = dataset()

    def both() -> list[Any]:
        torch.manual_seed(1)
        loader = DataLoader(data, 8, shuffle=True)
        pairs = list(zip(loader, loader, strict=True))
        for batch in loader:
            pairs.append(batch)
            break
        return [*pairs, torch.get_rng_state()]

    theirs = both()
    with ptac.enable_data_pipeline():
        ours = both()
    assert all(map(loading.is_same, ours, theirs))


def test_profilers_see_the_loader() -> None:
    with ptac.enable_data_pipeline(), torch.profiler.profile() as profile:
        list(DataLoader(dataset(), 8))
    names = {event.name for event in profile.events()}
    assert any("enumerate(DataLoader)" in name for name in names)


def test_the_report_says_what_waits() -> None:
    with ptac.enable_data_pipeline():
        ptac.report(reset=True)
        for x, _ in DataLoader(dataset(), 8):
            (x @ x.transpose(1, 2)).sum()
        content = json.loads(ptac.report("json"))
        text = ptac.report()
    (entry,) = content["data_pipeline"]
    assert entry["dataset"] == "TensorDataset"
    assert entry["batches"] == entry["at_once"] == -(-N // 8)
    assert 0 < entry["stall"] < entry["stall_before"] < 1
    assert "TensorDataset: 13 batches, 13 at once" in str(text)


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        print(index)
        return index


def test_the_report_says_why_stock_fetches(capsys: pytest.CaptureFixture[str]) -> None:
    with ptac.enable_data_pipeline():
        ptac.report(reset=True)
        list(DataLoader(Plain()))
        text = str(ptac.report())
    assert "Plain: 4 batches;" in text
    assert "by stock: __getitem__ has Expr in its line" in text
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3"]
