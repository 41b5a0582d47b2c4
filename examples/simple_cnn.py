"""A small convolutional network on handwritten digits: train it, then classify.

python examples/simple_cnn.py            accelerated, with the report
python examples/simple_cnn.py --stock    plain PyTorch

The images are scikit-learn's digits, enlarged from 8 x 8 to 28 x 28.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class SimpleCNN(nn.Module):
    """Two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify [N, 1, 28, 28] images into [N, 10] scores."""
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(x, 2)
        x = torch.relu(self.conv2(x))
        x = torch.max_pool2d(x, 2)
        x = x.view(x.size(0), -1)
        x = torch.relu(self.fc1(x))
        return self.fc2(x)


def make_model(seed: int = 0) -> nn.Module:
    """Build the network with its weights."""
    torch.manual_seed(seed)
    return SimpleCNN()


def load_digits() -> tuple[Batch, Batch]:
    """Images [N, 1, 28, 28] in 0..1 and their classes, for training and for testing."""
    from sklearn import datasets

    data = datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    classes = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order.split(len(order) * 4 // 5)[:2]
    return (images[train], classes[train]), (images[test], classes[test])


def make_batches(data: Batch, batch: int = 64, seed: int = 0) -> list[Batch]:
    """One epoch in random order, without the last images that fill no batch."""
    images, classes = data
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    full = order[: len(order) // batch * batch]
    return [(images[part], classes[part]) for part in full.split(batch)]


def train(model: nn.Module, batches: list[Batch]) -> list[float]:
    """Train; the loss before each step."""
    model.train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for images, classes in batches:
        optimizer.zero_grad()
        loss = criterion(model(images), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def classify(model: nn.Module, images: Tensor, batch: int = 64) -> Tensor:
    """The scores [N, 10] of the images."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in images.split(batch)])


def main() -> None:
    """Train, classify, and print what it took."""
    parser = argparse.ArgumentParser(description="A CNN on handwritten digits.")
    parser.add_argument("--stock", action="store_true", help="plain PyTorch")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if not options.stock:
        import pai_torchacc as ptac

        ptac.enable()

    training, (images, classes) = load_digits()
    model = make_model()
    for epoch in range(options.epochs):
        batches = make_batches(training, seed=epoch)
        start = time.perf_counter()
        losses = train(model, batches)
        elapsed = time.perf_counter() - start
        print(f"epoch {epoch + 1}: loss {losses[-1]:.6f}, {elapsed:.3f} s")
    start = time.perf_counter()
    scores = classify(model, images)
    elapsed = time.perf_counter() - start
    accuracy = (scores.argmax(1) == classes).float().mean().item()
    print(f"accuracy {accuracy:.4f}, {len(images) / elapsed:.0f} images/s")

    if not options.stock:
        print(ptac.report())


if __name__ == "__main__":
    main()
