"""Datasets of classes that the package has not seen: read, tried out, or left alone."""

from __future__ import annotations

import textwrap
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import loading
import numpy as np
import pytest
import torch
from own_datasets import (
    AT_ONCE,
    BY_STOCK,
    Arrays,
    Bare,
    Counting,
    Either,
    Inverse,
    Late,
    Lists,
    N,
    Nested,
    Numbers,
    Scalars,
    Scaled,
    Scaling,
    Small,
    Table,
    Tensors,
    Tutorial,
    Twice,
)
from torch.utils.data import DataLoader, Subset

import pai_torchacc as ptac
from pai_torchacc.data_pipeline import waiting


@pytest.mark.parametrize("cls", AT_ONCE)
@pytest.mark.parametrize("batch", [16, 48])
def test_served(cls: Any, batch: int) -> None:
    data = cls()
    loading.assert_same(lambda: DataLoader(data, batch, shuffle=True), at_once=True)
    part = Subset(data, list(range(10, 58)))
    loading.assert_same(lambda: DataLoader(part, batch, shuffle=True), at_once=True)


def test_numpy_scalars_of_all_dtypes() -> None:
    for dtype in (
        np.float16,
        np.float32,
        np.float64,
        np.int8,
        np.int32,
        np.uint8,
        bool,
    ):
        labels = (np.arange(N) % 2).astype(dtype)
        data = Arrays(labels=labels)
        loading.assert_same(lambda data=data: DataLoader(data, 16), at_once=True)


def test_bytes_that_numpy_warns_of() -> None:
    """Warnings are of bytes that are there, not of those that a table has."""
    data = Inverse(bytes=Table().bytes | 1)
    loading.assert_same(lambda: DataLoader(data, 16), at_once=True)
    data = Inverse()
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        loading.assert_same(lambda: DataLoader(data, 16), at_once=True)


def test_bytes_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from pai_torchacc.data_pipeline import values

    tables = []
    of_bytes = values._table

    def table(*arguments: Any) -> Any:
        tables.append(of_bytes(*arguments))
        return tables[-1]

    monkeypatch.setattr(values, "_table", table)
    with ptac.enable_data_pipeline():
        assert len(list(DataLoader(Scaled(), 16))) == N // 16
    assert [t.shape for t in tables] == [(256,), (256,)]  # one of them to try it out


@pytest.mark.parametrize("cls", BY_STOCK)
def test_left_to_stock(cls: Any) -> None:
    """Each makes its own data anew, for those that change it."""
    loading.assert_same(lambda: DataLoader(cls(), 16, shuffle=True), at_once=False)


def test_tensors_of_a_batch_share_no_memory() -> None:
    with ptac.enable_data_pipeline():
        for x, y, z, u in DataLoader(Twice(), 16):
            expected = y.clone()
            x.zero_()
            assert torch.equal(y, expected)
            assert torch.equal(z.flatten(1), expected)
            assert torch.equal(u, expected)


def give_getitems(data: Any) -> None:
    data.__getitems__ = lambda index: [(torch.zeros(1), 0) for _ in index]


def outcome(data: Any, change: Any) -> list[Any]:
    found: list[Any] = []
    try:
        for k, batch in enumerate(DataLoader(data, 16)):
            found.append(batch)
            if k == 1:
                change(data)
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize(
    ("cls", "change"),
    [
        (Bare, lambda data: data.__dict__.update(training=False)),
        (Either, lambda data: data.__dict__.update(transform="eval")),
        (Late, lambda data: data.__dict__.update(training=False)),
        (Small, lambda data: data.__dict__.update(labels=np.full(N, 300))),
        (Scaling, lambda data: data.__dict__.update(scale=float("nan"))),
        (Scaling, lambda data: data.__dict__.update(scale=torch.tensor(2.0))),
        (Scaled, lambda data: data.__dict__.update(bytes=data.images)),
        (Scaled, lambda data: data.__dict__.update(bytes=data.bytes[:, ::2])),
        (Scaled, lambda data: data.__dict__.update(bytes=data.bytes[:40])),
        (Scaled, give_getitems),
    ],
)
def test_changes_in_the_midst_are_those_of_stock(cls: Any, change: Any) -> None:
    """Branches, values and types that the first batch has not shown."""
    theirs = outcome(cls(), change)
    with ptac.enable_data_pipeline():
        ours = outcome(cls(), change)
    assert len(theirs) == len(ours)
    assert all(map(loading.is_same, theirs, ours)), (theirs[-1], ours[-1])


def test_what_was_disabled_is_served_again() -> None:
    data = Tensors()
    with ptac.enable_data_pipeline():
        with ptac.disabled():
            loading.epochs(DataLoader(data, 16))
        loading.epochs(DataLoader(data, 5))  # too few to gain
    loading.assert_same(lambda: DataLoader(data, 16), at_once=True)


def test_refusals_are_not_asked_for_again_and_again() -> None:
    """But what the code says may change: after a while it is asked."""
    data = Numbers()
    with ptac.enable_data_pipeline():
        waiting.reset()
        for _ in range(20):
            list(DataLoader(data, 16))
        data.training = False
        for _ in range(20):
            list(DataLoader(data, 16))
        (entry,) = waiting.loaders()
    assert 60 < entry.at_once <= 120


def test_plans_are_followed_and_let_memory_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is read for the first batch of an iterator; columns keep nothing."""
    from pai_torchacc.data_pipeline import fetching

    runs = []

    class Counted(fetching.Interpreter):
        def run(self) -> Any:
            runs.append(self)
            return super().run()

    monkeypatch.setattr(fetching, "Interpreter", Counted)
    data = Scaled()
    with ptac.enable_data_pipeline():
        iterator = iter(DataLoader(data, 16))
        x, _ = next(iterator)
        assert len(runs) == 2  # and the samples that are tried
        last = weakref.ref(x.untyped_storage())
        for _x, _ in iterator:
            pass
        assert len(runs) == 2
        assert all(column.made is None for column in runs[0].samples.columns)
    del x
    assert last() is None


def test_reasons_do_not_grow_with_numbers() -> None:
    from pai_torchacc.data_pipeline.fetching import knowledge_of

    data = Scaling()
    with ptac.enable_data_pipeline():
        for _ in DataLoader(data, 16):
            data.scale *= 0.9
    assert len(knowledge_of(data).reasons) == 1


@pytest.mark.parametrize("index", [np.int64(3), np.int32(4), torch.tensor(5), True])
def test_indices_of_other_types(index: Any) -> None:
    """What a sample's code makes of an index depends on its type."""
    batches = [[1] * 16, [index] * 16]
    data = Lists()
    loading.assert_same(lambda: DataLoader(data, batch_sampler=batches), at_once=None)


def test_what_others_have_changed_before() -> None:
    """Their functions are called, wherever loading calls torch's."""
    from torch.utils.data import TensorDataset
    from torch.utils.data._utils import collate, fetch

    calls: list[str] = []

    def count(owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        original = vars(owner)[name]

        def own(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        patch.setattr(owner, name, own)

    data = TensorDataset(torch.arange(64.0))
    for owner, name in (
        (TensorDataset, "__getitem__"),
        (collate, "collate"),
        (fetch._MapDatasetFetcher, "fetch"),
    ):
        with pytest.MonkeyPatch.context() as patch, ptac.enable_data_pipeline():
            count(owner, name, patch)
            calls.clear()
            list(DataLoader(data, 16))
            assert name in calls
    with pytest.MonkeyPatch.context() as patch, ptac.enable_data_pipeline():
        own = {**collate.default_collate_fn_map, torch.Tensor: lambda b, **_: len(b)}
        patch.setattr(collate, "default_collate_fn_map", own)
        assert [b[0] for b in DataLoader(data, 16)] == [16] * 4


def test_effects_are_those_of_stock() -> None:
    data = Counting()
    with ptac.enable_data_pipeline():
        loading.epochs(DataLoader(data, 16), n=1)
    assert data.calls == N


def test_transforms_of_ones_own_are_not_called_for_nothing() -> None:
    calls = []

    def transform(sample: Any) -> Any:
        calls.append(1)
        return sample

    data = Tutorial(transform=transform)
    loading.assert_same(lambda: DataLoader(data, 16), at_once=False, reason="a call of")
    assert len(calls) == 4 * N


def test_attributes_are_asked_each_time() -> None:
    """What changes between batches, in kind too, is seen; and tried out anew."""
    seen = []
    for is_on in (False, True):
        data = Nested()
        if is_on:
            ptac.enable_data_pipeline()
        found = []
        for i, batch in enumerate(DataLoader(data, 16)):
            found.append(batch)
            if i == 2:
                data.training = False
            if i == 4:
                data.labels = data.labels.astype(np.float64)
            if i == 6:
                data.tensor = data.tensor.half()
        seen.append(found)
    ptac.disable()
    assert all(map(loading.is_same, *seen))


def test_methods_replaced_later() -> None:
    class Changing(Table):
        def __getitem__(self, i: int) -> Any:
            return self.tensor[i]

    data = Changing()
    loading.assert_same(lambda: DataLoader(data, 16), at_once=True)

    def other(self: Any, i: int) -> Any:
        return self.tensor[i] * 2

    Changing.__getitem__ = other  # type: ignore[method-assign]
    loading.assert_same(lambda: DataLoader(data, 16), at_once=True)
    namespace: dict[str, Any] = {}
    exec("def hidden(self, i):\n    return self.tensor[i]", namespace)
    Changing.__getitem__ = namespace["hidden"]  # type: ignore[method-assign]
    loading.assert_same(
        lambda: DataLoader(data, 16), at_once=False, reason="cannot be had"
    )


def test_a_file_that_has_changed_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "kept.py"
    text = textwrap.dedent(
        """
        import torch

        class Kept(torch.utils.data.Dataset):
            def __init__(self):
                self.tensor = torch.arange(40.0)

            def __len__(self):
                return 40

            def __getitem__(self, i):
                return self.tensor[i] * 2
        """
    )
    module = ModuleType("kept")
    exec(compile(text, str(path), "exec"), module.__dict__)
    data = module.Kept()
    path.write_text(text.replace("* 2", "* 3"))
    loading.assert_same(
        lambda: DataLoader(data, 16), at_once=False, reason="cannot be had"
    )


@pytest.mark.parametrize(
    "before",
    [
        "",
        "from torch.utils.data import (\n    Dataset,\n)\n",
        'x = """\nclass A:\n"""\n',
    ],
)
def test_sources_of_many_forms(tmp_path: Path, before: str) -> None:
    path = tmp_path / "forms.py"
    text = textwrap.dedent(
        """
        import numpy as np
        if True:
            from torch import from_numpy as made

        class Forms:
            text = '''
        def __getitem__
            '''

            def __len__(self):
                return 64

            # A comment.
        # Another one.
            def __getitem__(self, i):
                return made(self.rows[i].astype(np.float32))

        def behind():
            return 1
        """
    )
    path.write_text(before + text)
    module = ModuleType("forms")
    exec(compile(before + text, str(path), "exec"), module.__dict__)
    data = module.Forms()
    data.rows = np.arange(256, dtype=np.uint8).reshape(64, 4)
    loading.assert_same(lambda: DataLoader(data, 16), at_once=True)


def test_constants_that_differ_only_in_type_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    text = "class D:\n    def __getitem__(self, i):\n        return 1\n"
    module = ModuleType("other")
    exec(compile(text.replace("1", "1.0"), str(path), "exec"), module.__dict__)
    path.write_text(text)
    from pai_torchacc.data_pipeline.reading import definition_of

    assert definition_of(module.D.__getitem__) is None


def test_errors_are_those_of_stock() -> None:
    data = Tensors()
    data.classes = data.classes[:50]
    with ptac.enable_data_pipeline(), pytest.raises(IndexError, match="out of bounds"):
        list(DataLoader(data, 16))
    short = Arrays(labels=np.arange(30))
    with ptac.enable_data_pipeline(), pytest.raises(IndexError, match="axis 0"):
        list(DataLoader(short, 16))
    holes = Scalars(classes=torch.full((N,), torch.nan))
    with ptac.enable_data_pipeline(), pytest.raises(ValueError, match="NaN"):
        list(DataLoader(holes, 16))


def test_arrays_of_files(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", Table().images)
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert isinstance(images, np.memmap)
    with pytest.warns(UserWarning, match="not writable"):
        loading.assert_same(lambda: DataLoader(Arrays(images=images), 16), at_once=True)


def test_byte_orders_and_strides() -> None:
    swapped = Arrays(images=Table().images.astype(">f4"))
    with ptac.enable_data_pipeline(), pytest.raises(ValueError, match="byte order"):
        list(DataLoader(swapped, 16))
    gaps = Arrays(images=Table().images[:, :, ::2])
    loading.assert_same(lambda: DataLoader(gaps, 16), at_once=False)
    backwards = Arrays(labels=Table().labels[::-1])
    loading.assert_same(lambda: DataLoader(backwards, 16), at_once=True)


def test_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        data = Arrays(labels=np.linspace(0, 1, N))
        loading.assert_same(lambda: DataLoader(data, 16), at_once=True)
    finally:
        torch.set_default_dtype(torch.float32)
    loading.assert_same(lambda: DataLoader(data, 16), at_once=True)


def test_datasets_that_nothing_can_refer_to_weakly() -> None:
    class Slotted:
        __slots__ = ("tensor",)

        def __init__(self) -> None:
            self.tensor = torch.arange(40.0)

        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> Any:
            return self.tensor[i]

    loading.assert_same(lambda: DataLoader(Slotted(), 8), at_once=False)  # type: ignore[arg-type]
