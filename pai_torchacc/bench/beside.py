"""What ``bench`` forwards to the repository's ``benchmarks``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from pai_torchacc.commands.usage import UsageError

FORWARDED = ("zoo", "peers")
"""First words after ``bench`` that are not figures'."""


def run(words: Sequence[str]) -> int:
    """Run this subcommand of ``python -m benchmarks``; the exit status.

    Raises UsageError where that is not the repository's, which nothing but a checkout
    has: in its root ``python -m`` finds it.
    """
    if not _is_here(words[0]):
        raise UsageError(
            f"{words[0]} is measured by the repository's benchmarks/{words[0]}, which "
            "is not here: run this in the root of a checkout of pai_torchacc"
        )
    status: int = import_module("benchmarks.__main__").main(words)
    return status


def _is_here(name: str) -> bool:
    """Whether ``benchmarks`` is ours; no other is imported."""
    spec = find_spec("benchmarks")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return any((Path(folder) / name / "run.py").is_file() for folder in folders)
