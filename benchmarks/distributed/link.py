"""Network namespaces joined by links of a known rate; needs root and iproute2.

Each namespace has one link to a bridge, which lies in a namespace of its own. The
kernel's token bucket filter (``tc-tbf``) limits both directions of each. Nothing
outside these namespaces is touched, and they are gone at the end of the block.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BURST_BYTES = 64 << 10
LATENCY_MS = 50
"""For which the filter holds packets back before it drops any."""


@dataclass(frozen=True)
class Network:
    """Namespaces, the address of the first and the name of each one's interface."""

    names: tuple[str, ...]
    address: str = "10.219.0.1"
    interface: str = "ptac0"

    def command(self, i: int, words: list[str]) -> list[str]:
        """What runs a command in one of them."""
        return ["ip", "netns", "exec", self.names[i], *words]


def why_not() -> str | None:
    """Why this process cannot make such a network, or None."""
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    if missing:
        return f"no {' and no '.join(missing)}: apt-get install iproute2"
    return None if os.geteuid() == 0 else "only root makes network namespaces"


@contextmanager
def network(n: int, mbit: int) -> Iterator[Network]:
    """So many namespaces, each with a link of so many Mbit/s each way."""
    prefix = f"ptac-{os.getpid()}"
    made, hub = Network(tuple(f"{prefix}-{i}" for i in range(n))), f"{prefix}-hub"
    limits = f"root tbf rate {mbit}mbit burst {BURST_BYTES} latency {LATENCY_MS}ms"
    try:
        for name in (hub, *made.names):
            _run(f"ip netns add {name}")
        _run(f"ip -n {hub} link add bridge0 type bridge")
        _run(f"ip -n {hub} link set bridge0 up")
        for i, name in enumerate(made.names):
            ends = f"ptac0 netns {name} type veth peer name end{i} netns {hub}"
            _run(f"ip link add {ends}")
            _run(f"ip -n {hub} link set end{i} master bridge0 up")
            _run(f"ip -n {name} addr add 10.219.0.{i + 1}/24 dev ptac0")
            for interface in ("lo", "ptac0"):
                _run(f"ip -n {name} link set {interface} up")
            _run(f"tc -n {name} qdisc add dev ptac0 {limits}")
            _run(f"tc -n {hub} qdisc add dev end{i} {limits}")
        yield made
    finally:
        for name in (hub, *made.names):
            subprocess.run(
                ["ip", "netns", "delete", name], capture_output=True, check=False
            )


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
