"""Datasets as people write them: those that are served at once, and others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset

N = 96


class Table(Dataset[Any]):
    """What the classes below keep their samples in."""

    def __init__(self, **content: Any):
        digits = load_digits()
        self.images = digits.images[:N].astype(np.float32)
        self.bytes = (digits.images[:N] * 15).astype(np.uint8)
        self.doubles = digits.data[:N]
        self.labels = digits.target[:N]
        self.tensor = torch.from_numpy(digits.data[:N]).float()
        self.classes = torch.from_numpy(digits.target[:N])
        self.list = digits.target[:N].tolist()
        self.order = list(range(N))[::-1]
        self.small = torch.arange(N, dtype=torch.uint8)
        self.scale, self.transform, self.training = 16.0, None, True
        self.__dict__.update(content)

    def __len__(self) -> int:
        return N


class Tensors(Table):
    def __getitem__(self, index: int) -> Any:
        return self.tensor[index], self.classes[index]


class Arrays(Table):
    def __getitem__(self, idx: int) -> Any:
        """Numbers of numpy, and a row."""
        x = self.images[idx]
        y = self.labels[idx]
        return x, y


class Lists(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i], self.list[i], i


class Tutorial(Table):
    """As the tutorials write it."""

    def __getitem__(self, idx: int) -> Any:
        if torch.is_tensor(idx):
            idx = idx.tolist()  # type: ignore[attr-defined]
        image = torch.from_numpy(self.images[idx]).unsqueeze(0)
        label = torch.tensor(self.labels[idx], dtype=torch.long)
        sample = {"image": image, "label": label}
        if self.transform:
            sample = self.transform(sample)
        return sample


class Scaled(Table):
    def __getitem__(self, i: int) -> Any:
        image = self.bytes[i].astype(np.float32) / 255.0
        image = (image - 0.1307) / 0.3081
        image = image[None, :, :]
        return torch.from_numpy(image), int(self.labels[i])


class Shaped(Table):
    def __getitem__(self, i: int) -> Any:
        x = torch.tensor(self.doubles[i], dtype=torch.float32).view(1, 8, -1)
        y = np.expand_dims(self.images[i], 0)
        z = torch.as_tensor(self.images[i]).permute(1, 0)
        return [x / self.scale, y, z, self.doubles[i].reshape(8, 8)]


class Numbers(Table):
    def __getitem__(self, i: int) -> Any:
        return float(self.doubles[i, 0]) if self.training else 1.0


class Constants(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i], 0, 1.5, True


class Twice(Table):
    """What a sample gives twice is two tensors in a batch."""

    def __getitem__(self, i: int) -> Any:
        x = self.tensor[i]
        return x, x, x.view(8, 8), x.float()


class Scalars(Table):
    def __getitem__(self, i: int) -> Any:
        j = self.order[i]
        return {
            "item": self.classes[j].item(),
            "int": int(self.classes[j]),
            "float": float(self.labels[i]),
            "scalar": self.labels[j],
            "index": j,
        }


class Nested(Table):
    def __getitem__(self, i: int) -> Any:
        x = self.tensor[i] if self.training is True else self.tensor[i] * 2
        x: Tensor = x.double()
        return (x, (self.list[i], self.labels[i]), [self.classes[i].float()])


class Private(Table):
    def __init__(self) -> None:
        super().__init__()
        self.__data = self.tensor

    def __getitem__(self, i: int) -> Any:
        return self.__data[i]


class Bytes(Table):
    """Bytes that become floats on several ways, and are used on the way."""

    def __getitem__(self, i: int) -> Any:
        image = self.bytes[i] / 255.0
        single = image.astype(np.float32)
        wrapped = self.bytes[i] * 3 + 100
        half = torch.from_numpy(self.bytes[i]).half()
        return (
            (image, single, single - 0.5, wrapped, wrapped.astype("f4"), half),
            torch.tensor(image, dtype=torch.float32).permute(1, 0) * 2,
            (torch.from_numpy(self.bytes[i]).permute(1, 0).float() / 255).unsqueeze(0),
            1.0 / (self.bytes[i].reshape(4, 16).astype(np.float32) + 1.0),
        )


class Columns(Table):
    """Bytes that are no images."""

    def __getitem__(self, i: int) -> Any:
        return self.small[i].float() / 3, self.small[i].to(torch.int32) - 1


AT_ONCE = (
    *(Tensors, Arrays, Lists, Tutorial, Scaled, Shaped, Scalars, Nested, Private),
    *(Constants, Twice, Bytes, Columns),
)


class Inverse(Table):
    def __getitem__(self, i: int) -> Any:
        return 1.0 / self.bytes[i].astype(np.float32)


class Counting(Table):
    calls = 0

    def __getitem__(self, i: int) -> Any:
        self.calls += 1
        return self.tensor[i]


class Random(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i] + torch.randn(64)


class NumpyRandom(Table):
    def __getitem__(self, i: int) -> Any:
        return self.images[i] * np.random.rand()


class InPlace(Table):
    def __getitem__(self, i: int) -> Any:
        x = self.tensor[i]
        x /= 2
        return x


class ByValue(Table):
    def __getitem__(self, i: int) -> Any:
        x = self.tensor[i]
        if x.sum() > 300:
            return x * 0
        return x


class Loop(Table):
    def __getitem__(self, i: int) -> Any:
        return sum(self.list[k] for k in range(i % 3 + 1))


class Neighbour(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i], self.tensor[(i + 1) % N]


class Whole(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[0], self.list[i]


class Computed(Table):
    @property
    def view(self) -> Tensor:
        return self.tensor * 2

    def __getitem__(self, i: int) -> Any:
        return self.view[i]


class Watched(Table):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)

    def __getitem__(self, i: int) -> Any:
        return self.tensor[i]


class Chosen(Table):
    def __getitem__(self, i: int, j: int = 0) -> Any:
        return self.tensor[i], self.list[j]


class Text(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i], "text"


class Reduced(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i].sum(), self.images[i].mean()


BY_STOCK = (
    *(Counting, Random, NumpyRandom, InPlace, ByValue, Loop, Neighbour, Whole),
    *(Computed, Watched, Text, Chosen, Reduced, Numbers),
)


class Bare(Table):
    def __getitem__(self, i: int) -> Any:
        if not self.training:
            return
        return self.tensor[i]


class Either(Table):
    def __getitem__(self, i: int) -> Any:
        if (self.transform or "train") == "eval":
            return self.tensor[i] * 16
        return self.tensor[i]


class Late(Table):
    def __getitem__(self, i: int) -> Any:
        if self.training:
            x = self.tensor[i]
        return x  # where it has no value, a global of the name is not asked


x = torch.zeros(3)


class Starred(Table):
    def __getitem__(self, i: int, *x: Any) -> Any:
        return self.tensor[i], len(x)


class Small(Table):
    def __getitem__(self, i: int) -> Any:
        return torch.tensor(int(self.labels[i]), dtype=torch.uint8)


class Scaling(Table):
    def __getitem__(self, i: int) -> Any:
        return self.tensor[i] * self.scale
