"""Images as arrays of bytes, torchvision's transforms, torch's random numbers."""

from __future__ import annotations

import threading
from typing import Any

import loading
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.data_pipeline import images

T = loading.transforms()
Image = pytest.importorskip("PIL.Image")

N = 60


class Images(Dataset[Any]):
    """As torchvision's sets of images are, and many that follow them."""

    def __init__(self, data: Any, transform: Any = None, channels: int = 3):
        self.data, self.transform = data, transform
        self.targets = [i % 10 for i in range(len(data))]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        img, target = self.data[index], int(self.targets[index])
        img = Image.fromarray(img)
        if self.transform is not None:
            img = self.transform(img)
        return img, target


class Arrays(Images):
    """Without PIL."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data[index]), self.targets[index]


def pixels(*shape: int) -> Any:
    return np.random.default_rng(7).integers(0, 256, (N, *shape), dtype=np.uint8)


def normalized(channels: int = 3) -> list[Any]:
    mean, std = (0.48, 0.45, 0.41)[:channels], (0.23, 0.22, 0.27)[:channels]
    return [T.ToTensor(), T.Normalize(mean, std)]


PLACES: dict[str, list[Any]] = {
    "none": [],
    "crop": [T.RandomCrop(32, padding=4)],
    "crop and flip": [T.RandomCrop(28, padding=2), T.RandomHorizontalFlip()],
    "smaller crop": [T.RandomCrop((20, 31))],
    "whole crop": [T.RandomCrop(32)],
    "flips": [T.RandomHorizontalFlip(0.3), T.RandomVerticalFlip(0.8)],
    "certain flips": [T.RandomHorizontalFlip(1), T.RandomVerticalFlip(0)],
    "center": [T.CenterCrop(24), T.RandomHorizontalFlip()],
    "odd center": [T.CenterCrop((23, 30))],
    "pad": [T.Pad((1, 2, 3, 4), fill=77), T.RandomCrop(33), T.RandomVerticalFlip()],
    "fill": [T.RandomCrop(36, padding=(3, 5), fill=(9, 200, 255))],
    "flip, pad": [T.RandomHorizontalFlip(), T.Pad(3), T.RandomCrop(32)],
    "two crops": [T.RandomCrop(30), T.RandomCrop(25), T.CenterCrop(20)],
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_color_images(name: str, where: str) -> None:
    """Crops and flips of PIL's images, and of tensors behind ToTensor."""
    places = PLACES[name]
    if where == "after" and name == "fill":
        places = [T.RandomCrop(36, padding=(3, 5), fill=0.25)]
    steps = [*places, *normalized()] if where == "before" else [*normalized(), *places]
    if where == "after":
        steps.append(T.Normalize((0.1,) * 3, (0.9,) * 3))
    data = Images(pixels(32, 32, 3), T.Compose(steps))
    loading.assert_same(lambda: DataLoader(data, 16, shuffle=True), at_once=True)


@pytest.mark.parametrize("name", [n for n in PLACES if n != "fill"])
def test_gray_images(name: str) -> None:
    steps = [*PLACES[name], *normalized(1)]
    data = Images(pixels(32, 32), T.Compose(steps))
    loading.assert_same(lambda: DataLoader(data, 16, shuffle=True), at_once=True)


@pytest.mark.parametrize("shape", [(1, 1), (5, 9), (1, 40, 3), (33, 17, 3)])
def test_extents(shape: tuple[int, ...]) -> None:
    steps = [T.Pad(2), T.RandomCrop(5), T.RandomHorizontalFlip(), T.ToTensor()]
    data = Images(pixels(*shape), T.Compose(steps))
    loading.assert_same(lambda: DataLoader(data, 7, shuffle=True), at_once=True)


def test_transforms_that_are_no_compositions() -> None:
    data = Images(pixels(9, 8, 3), T.ToTensor())
    loading.assert_same(lambda: DataLoader(data, 7), at_once=True)


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 1), (9, 8, 3), (9, 8, 4)])
def test_arrays(shape: tuple[int, ...]) -> None:
    steps = [T.ToTensor(), T.RandomCrop(6), T.RandomHorizontalFlip()]
    data = Arrays(pixels(*shape), T.Compose(steps))
    loading.assert_same(lambda: DataLoader(data, 7, shuffle=True), at_once=True)


def test_tensors_of_bytes() -> None:
    """Torchvision's MNIST keeps a tensor and makes arrays of its rows."""
    datasets = pytest.importorskip("torchvision.datasets")
    data = datasets.MNIST.__new__(datasets.MNIST)
    data.data = torch.from_numpy(pixels(28, 28))
    data.targets = torch.arange(N) % 10
    data.transform = T.Compose([T.RandomCrop(28, padding=3), *normalized(1)])
    data.target_transform = None
    loading.assert_same(lambda: DataLoader(data, 16, shuffle=True), at_once=True)
    cifar = datasets.CIFAR10.__new__(datasets.CIFAR10)
    cifar.data, cifar.targets = pixels(32, 32, 3), [i % 10 for i in range(N)]
    cifar.transform = T.Compose([*PLACES["crop and flip"], *normalized()])
    cifar.target_transform = None
    loading.assert_same(lambda: DataLoader(cifar, 16, shuffle=True), at_once=True)


class OwnCrop(T.RandomCrop):
    """A subclass may do anything."""


BY_STOCK: dict[str, list[Any]] = {
    "resize": [T.Resize(20), T.ToTensor()],
    "jitter": [T.ColorJitter(0.5), T.ToTensor()],
    "no tensor": [T.PILToTensor()],
    "two pads": [T.Pad(1), T.Pad(2), T.ToTensor()],
    "pad behind a crop": [T.RandomCrop(20), T.Pad(2), T.ToTensor()],
    "reflected": [T.RandomCrop(32, padding=4, padding_mode="reflect"), T.ToTensor()],
    "erased": [T.ToTensor(), T.RandomErasing(1.0)],
    "lambda": [T.ToTensor(), T.Lambda(lambda x: x * 2)],
    "subclass": [OwnCrop(20), T.ToTensor()],
    "too large": [T.CenterCrop(40), T.ToTensor()],
    "applied": [T.RandomApply([T.RandomHorizontalFlip()]), T.ToTensor()],
}


@pytest.mark.parametrize("name", BY_STOCK)
def test_left_to_stock(name: str) -> None:
    data = Images(pixels(32, 32, 3), T.Compose(BY_STOCK[name]))
    loading.assert_same(lambda: DataLoader(data, 16, shuffle=True), at_once=False)


class TwoViews(Images):
    def __getitem__(self, index: int) -> Any:
        img = Image.fromarray(self.data[index])
        return self.transform(img), self.transform(img)


class Unused(Images):
    def __getitem__(self, index: int) -> Any:
        img = Image.fromarray(self.data[index])
        self.transform(img)
        return self.targets[index]


def test_numbers_that_are_drawn_sample_by_sample() -> None:
    """Two random transforms take turns; one whose image is dropped draws as well."""
    for cls in (TwoViews, Unused):
        data = cls(pixels(32, 32, 3), T.Compose([T.RandomCrop(20), T.ToTensor()]))
        loading.assert_same(
            lambda data=data: DataLoader(data, 16, shuffle=True), at_once=False
        )
    still = TwoViews(pixels(32, 32, 3), T.Compose([T.CenterCrop(20), T.ToTensor()]))
    loading.assert_same(lambda: DataLoader(still, 16, shuffle=True), at_once=True)


@pytest.mark.parametrize("first", [1, 8])
def test_two_views_are_never_drawn_at_once(first: int) -> None:
    """Not even where the first samples look alike either way."""
    data = TwoViews(pixels(32, 32, 3), T.Compose([T.RandomCrop(20), T.ToTensor()]))
    data.data[:8] = 0
    with ptac.enable_data_pipeline():
        loading.epochs(DataLoader(data, first), n=1)
    loading.assert_same(lambda: DataLoader(data, 16, shuffle=True), at_once=False)
    exact = TwoViews(pixels(20, 20, 3), data.transform)
    loading.assert_same(lambda: DataLoader(exact, 16), at_once=False)


def test_steps_that_others_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    crop = T.RandomCrop(20)

    def check(at_once: bool) -> None:
        data = Images(pixels(32, 32, 3), T.Compose([crop, T.ToTensor()]))
        loading.assert_same(lambda: DataLoader(data, 16), at_once=at_once)

    check(True)
    crop.get_params = lambda *_: (0, 0, 20, 20)
    check(False)
    del crop.get_params
    check(True)
    with monkeypatch.context() as patch:
        own = staticmethod(lambda *_: (1, 1, 20, 20))
        patch.setattr(T.RandomCrop, "get_params", own)
        check(False)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "fromarray", lambda a, **_: Image.new("RGB", (32, 32)))
        check(False)
    check(True)


def test_means_that_are_tensors() -> None:
    """They may change without anybody's seeing it."""
    norm = T.Normalize(torch.full((3,), 0.5), torch.full((3,), 0.2))
    data = Images(pixels(8, 8, 3), T.Compose([T.ToTensor(), norm]))
    loading.assert_same(lambda: DataLoader(data, 16), at_once=False, reason="mean")


def test_numbers_of_other_threads_are_not_drawn_again() -> None:
    data = Images(pixels(32, 32, 3), T.Compose([T.RandomCrop(30), T.ToTensor()]))
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            list(DataLoader(data, 30))

    with ptac.enable_data_pipeline():
        list(DataLoader(data, 30))
        thread = threading.Thread(target=load)
        thread.start()
        try:
            drawn = [torch.randint(0, 1 << 62, (1,)).item() for _ in range(30000)]
        finally:
            is_over.set()
            thread.join()
    assert len(set(drawn)) == len(drawn)


def test_errors_are_those_of_stock() -> None:
    data = Images(pixels(16, 16, 3), T.Compose([T.RandomCrop(17), T.ToTensor()]))
    with ptac.enable_data_pipeline(), pytest.raises(ValueError, match="crop size"):
        list(DataLoader(data, 4))
    zero = Images(pixels(16, 16, 3), T.Compose([*normalized()[:1], T.Normalize(0, 0)]))
    with ptac.enable_data_pipeline(), pytest.raises(ValueError, match="zero"):
        list(DataLoader(zero, 4))


def test_a_later_error_leaves_the_numbers_to_stock() -> None:
    """Numbers drawn for a batch that then fails are drawn again by stock."""
    data = Images(pixels(16, 16, 3), T.Compose([T.RandomCrop(9), T.ToTensor()]))
    data.targets = data.targets[: N - 3]
    states = []
    for is_on in (False, True):
        if is_on:
            ptac.enable_data_pipeline()
        torch.manual_seed(1)
        with pytest.raises(IndexError):
            list(DataLoader(data, 16))
        states.append(torch.get_rng_state())
    ptac.disable()
    assert torch.equal(*states)


def test_parameters_are_asked_each_time() -> None:
    found = []
    for is_on in (False, True):
        crop, norm = T.RandomCrop(20, padding=2), T.Normalize((0.5,) * 3, (0.2,) * 3)
        data = Images(pixels(32, 32, 3), T.Compose([crop, T.ToTensor(), norm]))
        if is_on:
            ptac.enable_data_pipeline()
        torch.manual_seed(2)
        batches = []
        for i, batch in enumerate(DataLoader(data, 8)):
            batches.append(batch)
            if i == 1:
                norm.mean, crop.padding = (0.1, 0.2, 0.3), 5
            if i == 3:
                data.transform.transforms.insert(0, T.RandomHorizontalFlip())
            if i == 5:
                norm.register_forward_hook(lambda m, x, y: y * 2)
        found.append(batches)
    ptac.disable()
    assert all(map(loading.is_same, *found))


def test_default_dtype_and_normalization_in_place() -> None:
    data = Images(
        pixels(8, 8, 3), T.Compose([T.ToTensor(), T.Normalize(0.5, 0.1, True)])
    )
    loading.assert_same(lambda: DataLoader(data, 7), at_once=True)
    torch.set_default_dtype(torch.float64)
    try:
        loading.assert_same(lambda: DataLoader(data, 7), at_once=False)
    finally:
        torch.set_default_dtype(torch.float32)


def test_arrays_with_gaps() -> None:
    gaps = Images(pixels(40, 40, 3)[:, 4:36, 4:36], T.ToTensor())
    loading.assert_same(lambda: DataLoader(gaps, 16), at_once=False)
    every_other = Images(pixels(8, 8, 3)[::-2], T.ToTensor())
    loading.assert_same(lambda: DataLoader(every_other, 16), at_once=True)


def test_numbers_drawn_in_c_are_those_of_torch() -> None:
    assert images.draws_as_torch()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        torch.rand(37 * seed, generator=generator)
        state = generator.get_state()
        drawn = torch.tensor(_C.data_draw(state, 64)) & 0xFFFFFF
        floats = torch.stack([torch.rand(1, generator=generator) for _ in range(64)])
        assert torch.equal(drawn.float() * 2**-24, floats.flatten())
        assert torch.equal(state, generator.get_state())


def test_states_that_are_none() -> None:
    state = torch.get_rng_state()
    state[8:12] = 255  # how many numbers are left
    for wrong in (state, state[:100].clone(), torch.zeros(5056), None):
        with pytest.raises(ValueError, match="no state"):
            _C.data_draw(wrong, 3)  # type: ignore[arg-type]
