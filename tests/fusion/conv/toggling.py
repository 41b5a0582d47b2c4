"""Switching on and off while other threads use what is switched."""

from __future__ import annotations

import threading
from typing import Any

import switching
import torch
from torch import Tensor


def hold_in_threads(net: Any, x: Tensor, ops: tuple[str, ...], row: str) -> None:
    """Two threads call ``net(x)`` while 20 blocks begin and end; results stay close."""
    stock, wrong, n_done, stopped = net(x), [], [0, 0], threading.Event()

    def work(i: int) -> None:
        while not stopped.is_set():
            if not torch.allclose(net(x), stock, rtol=1e-4, atol=1e-5):
                wrong.append(i)
            n_done[i] += 1

    threads = [threading.Thread(target=work, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with switching.accelerated(*ops, row=row):
                net(x)
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert all(n_done)
