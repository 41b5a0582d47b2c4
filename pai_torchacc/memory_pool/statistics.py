"""What the pool has done, with the keys of ``torch.cuda.memory_stats``."""

from __future__ import annotations

from pai_torchacc import _host
from pai_torchacc._options import device_checked
from pai_torchacc._table import aligned
from pai_torchacc.memory_pool import cuda

_PARTS = ("current", "peak", "allocated", "freed")
_NO_OVERSIZE = {
    f"oversize_{what}.{part}": 0
    for what in ("allocations", "segments")
    for part in _PARTS
}
"""torch's keys for blocks above max_split_size, of which the pool has none."""


def memory_stats(device: object = "cpu") -> dict[str, int]:
    """Statistics of a device's pool, with the keys of ``torch.cuda.memory_stats``.

    On the CPU they are about storages of 64 KiB and more, made while the pool was on.
    Bytes and counts, each ``current``, ``peak``, ``allocated`` and ``freed`` (both
    since the pool was opened last), for ``all``, ``large_pool`` and ``small_pool`` (up
    to a MiB); the arena counts as large. Keys that torch lacks begin with ``ptac.``;
    among them ``ptac.arena_bytes``, what the arena spans up to its last block in use.
    Empty for CUDA that is not initialised.

    Raises
    ------
    ValueError, TypeError
        There is no pool for such a device.
    """
    kind = device_checked(device)
    if kind == "cuda" and not cuda.has_pool():
        torch_cuda = cuda.initialized()
        stats = torch_cuda.memory_stats(cuda.index_of(device)) if torch_cuda else {}
        return dict(stats)
    c = _host.compiled()
    counted = c.pool_stats(cuda.index_of(device)) if c else {}
    if not counted:
        return {}
    if kind == "cpu":
        counted["ptac.scratch_bytes.current"] = c.scratch_kept()
    return dict(sorted((counted | _NO_OVERSIZE | {"max_split_size": -1}).items()))


def reset_peak_memory_stats(device: object = "cpu") -> None:
    """Every ``peak`` becomes what is current."""
    if device_checked(device) == "cpu" or cuda.has_pool():
        if c := _host.compiled():
            c.pool_reset_peaks(cuda.index_of(device))
    elif torch_cuda := cuda.initialized():
        torch_cuda.reset_peak_memory_stats(cuda.index_of(device))


def empty_cache(device: object = None) -> int:
    """Give memory that no tensor uses back to the system; how many bytes.

    Parameters
    ----------
    device : {None, "cpu", "cuda"}
        Whose pool; None for all.
    """
    if device is None:
        return empty_cache("cpu") + empty_cache("cuda")
    if device_checked(device) == "cuda":
        return _empty_cuda()
    c = _host.compiled()
    return c.pool_trim() + c.scratch_clear() if c else 0


def _empty_cuda() -> int:
    torch_cuda = cuda.initialized()
    if not torch_cuda:
        return 0
    if cuda.has_pool():
        return _host.extension().cuda_pool_trim()
    before = torch_cuda.memory_reserved()
    torch_cuda.empty_cache()
    return before - torch_cuda.memory_reserved()


_ROWS: tuple[tuple[str, str], ...] = (
    ("Allocated memory", "allocated_bytes"),
    ("Active memory", "active_bytes"),
    ("Requested memory", "requested_bytes"),
    ("Reserved memory", "reserved_bytes"),
    ("Non-releasable memory", "inactive_split_bytes"),
    ("Allocations", "allocation"),
    ("Active allocations", "active"),
    ("Reserved segments", "segment"),
    ("Non-releasable blocks", "inactive_split"),
)


def memory_summary(device: object = "cpu", abbreviated: bool = False) -> str:
    """The statistics as a table for people, as ``torch.cuda.memory_summary``."""
    kind = device_checked(device)
    torch_cuda = cuda.initialized()
    if kind == "cuda" and torch_cuda and not cuda.has_pool():
        return torch_cuda.memory_summary(cuda.index_of(device), abbreviated)
    counted = memory_stats(device)
    rows = [("", "current", "peak", "total allocated", "total freed")]
    for title, key in _ROWS if counted else ():
        for pool in ("all",) if abbreviated else ("all", "large_pool", "small_pool"):
            parts = [counted[f"{key}.{pool}.{p}"] for p in _PARTS]
            shown = [_shown(n, key.endswith("bytes")) for n in parts]
            rows.append((title if pool == "all" else f"  from {pool}", *shown))
    lines = aligned(rows, right=range(1, 5), between=" | ")
    rule = "-" * len(lines[0])
    about = f"{kind.upper()} memory pool: {counted.get('num_ooms', 0)} out of memory, "
    about += f"{counted.get('num_alloc_retries', 0)} retries, "
    about += f"{_shown(counted.get('ptac.purged_bytes', 0), True)} given back"
    return "\n".join([rule, about, rule, lines[0], rule, *lines[1:], rule])


def _shown(n: int, is_bytes: bool) -> str:
    if not is_bytes:
        return str(n)
    return f"{n} B" if n < 10 * 1024 else f"{n / 2**20:.1f} MiB"
