"""Tests marked ``gpu`` run where calls on CUDA can be ours, and else say why not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def why_none() -> str | None:
    """Why no call on a GPU can be ours here, in the words of torch and of status()."""
    import torch

    import pai_torchacc as ptac

    with ptac.enable("operator_fusion") as handle:
        if not handle:
            return handle.reason
        line = ptac.status()["operator_fusion"].get("cuda")
    if not torch.cuda.is_available():
        return f"there is no CUDA device; operator_fusion on CUDA: {line}"
    return line if line is None or line.startswith("none") else None


@pytest.fixture(autouse=True)
def needs_a_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """A skip names the reason; PTAC_REQUIRE_GPU=1 makes it a failure."""
    marker = request.node.get_closest_marker("gpu")
    if marker is None:
        yield
        return
    if reason := why_none():
        if os.environ.get("PTAC_REQUIRE_GPU") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    import torch

    n = marker.kwargs.get("devices", 1)
    if torch.cuda.device_count() < n:
        pytest.skip(f"needs {n} devices, here is {torch.cuda.device_count()}")
    yield
