"""Data parallel training of a small CNN: the script of every tutorial.

torchrun --nproc-per-node 2 examples/distributed.py                        plain PyTorch
python -m pai_torchacc launch --nproc-per-node 2 examples/distributed.py   accelerated

Needs scikit-learn for its images of handwritten digits.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn import datasets
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_model() -> nn.Module:
    """Two convolutions and two linear layers for [N, 1, 28, 28] images."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def digits() -> TensorDataset:
    """Images between 0 and 1, enlarged from 8 x 8, and their classes."""
    data = datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    return TensorDataset(images, torch.tensor(data.target))


def main() -> None:
    """Train on this rank's part of the images; rank 0 prints."""
    parser = argparse.ArgumentParser(description="DistributedDataParallel.")
    parser.add_argument("--backend", default="gloo", help="nccl on machines with GPUs")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()

    dist.init_process_group(backend=options.backend)
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device, device_ids = torch.device("cpu"), None
    if options.backend == "nccl":
        torch.cuda.set_device(local_rank)
        device, device_ids = torch.device("cuda", local_rank), [local_rank]
    model = DistributedDataParallel(make_model().to(device), device_ids=device_ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dataset = digits()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=options.batch, sampler=sampler)

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        total = torch.zeros(2, device=device)
        for batch in loader:
            images, classes = (t.to(device) for t in batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
            total[0] += loss.detach() * len(images)
            total[1] += len(images)
        elapsed = time.perf_counter() - start
        dist.all_reduce(total)
        if rank == 0:
            mean = (total[0] / total[1]).item()
            print(f"epoch {epoch + 1}: loss {mean:.6f}, {elapsed:.3f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
