"""An ordinary nn.DataParallel script, and one line more; needs scikit-learn.

python examples/data_parallel.py                             in one process
torchrun --nproc-per-node=2 examples/data_parallel.py        in two, the same losses
python examples/data_parallel.py --stock                     plain PyTorch
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if "--stock" not in sys.argv:
    import pai_torchacc as ptac

    ptac.enable_data_parallelism(mode="ddp")

torch.manual_seed(0)
images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
dataset = TensorDataset(images.float() / 16, labels)
train_loader = DataLoader(dataset, batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = nn.DataParallel(model)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(3):
    n_right, total = 0, 0.0
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        n_right += int((outputs.argmax(1) == targets).sum())
    n = len(dataset)
    print(f"epoch {epoch}: loss {total / n:.5f}, accuracy {n_right / n:.4f}")

if "--stock" not in sys.argv:
    print(ptac.explain_parallelism())
