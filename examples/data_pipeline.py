"""Epochs that hardly wait for data; with ``--stock``, plain PyTorch."""

import sys
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

if "--stock" not in sys.argv:
    import pai_torchacc as ptac

    ptac.enable()
    ptac.enable_data_pipeline()


class Digits(Dataset):
    """Handwritten digits, converted sample by sample."""

    def __init__(self, images, labels):
        self.images, self.labels = images.astype(np.uint8), labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].astype(np.float32) / 16.0
        return torch.from_numpy(image).unsqueeze(0), int(self.labels[index])


def train(name, dataset, epochs=3):
    """Print loss, accuracy and seconds of a small network's epochs."""
    torch.manual_seed(0)
    part, rest = random_split(dataset, [1500, len(dataset) - 1500])
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        start = time.perf_counter()
        for x, y in DataLoader(part, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        with torch.no_grad():
            found = [(model(x).argmax(1) == y) for x, y in DataLoader(rest, 64)]
        accuracy = torch.cat(found).float().mean().item()
        print(f"{name} {epoch}: {loss.item():.4f}, {accuracy:.1%}, {seconds:.2f} s")


digits = load_digits()
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
train("tensors", TensorDataset(images, torch.from_numpy(digits.target)))
train("own class", Digits(digits.images, digits.target))
if "--stock" not in sys.argv:
    print(ptac.report())
