"""Torch's generators of CUDA devices, as far as they are asked."""

from __future__ import annotations


class Generator:
    """One device's."""

    def __init__(self) -> None:
        self.offset = 0

    def initial_seed(self) -> int:
        """One that has all its bits looked at."""
        return 2**63 + 12345

    def get_offset(self) -> int:
        """What has been taken so far."""
        return self.offset

    def set_offset(self, offset: int) -> None:
        """Torch's own refuses others, too."""
        assert offset % 4 == 0
        self.offset = offset
