"""Object files that are compiled again only where their text or their command changed.

Beside each object lies a record of what went into it, a hash of the source and of
every header that it includes, and of what the compiler said. Objects of different
commands or compilers lie in different folders. Several processes may use one folder at
once. It is safe to remove at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

JOBS = len(os.sched_getaffinity(0))


class CompileError(RuntimeError):
    """The compiler has refused a source; the text is what it said."""


class Objects:
    """Objects of one command, such as ``["cc", "-O2"]``, below ``folder``.

    ``root`` is what the paths of sources are told apart by; the compiler runs there.
    ``kind`` is the compiler's option for what it makes. ``is_quiet``: what it says is
    only kept, where it says something of every source.
    """

    def __init__(
        self,
        folder: Path,
        root: Path,
        command: Sequence[str],
        *,
        kind: str = "-c",
        is_quiet: bool = False,
    ):
        self.root = root
        self.command = list(command)
        self.kind = kind
        self.is_quiet = is_quiet
        identity = json.dumps([self.command, _version(self.command[0])])
        self.folder = folder / hashlib.sha256(identity.encode()).hexdigest()[:12]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hashes: dict[Path, str | None] = {}

    def compile(self, sources: Iterable[Path]) -> list[Path]:
        """Bring the objects of these sources up to date, in parallel; their paths."""
        with ThreadPoolExecutor(JOBS) as pool:
            return list(pool.map(self._bring_up_to_date, sources))

    def is_current(self, source: Path) -> bool:
        """Whether the object of this source is there already."""
        return self._is_current(self._target(source))

    def warnings(self, sources: Iterable[Path]) -> str:
        """What the compiler said about these sources, which are up to date."""
        records = (self._target(s).with_suffix(".json") for s in sources)
        return "".join(json.loads(r.read_text())["said"] for r in records)

    def _target(self, source: Path) -> Path:
        name = str(source.relative_to(self.root)).replace("/", ".")
        return self.folder / f"{name}.o"

    def _bring_up_to_date(self, source: Path) -> Path:
        target = self._target(source)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_current(target):
                self._compile_one(source, target)
        return target

    def _is_current(self, target: Path) -> bool:
        try:
            record = json.loads(target.with_suffix(".json").read_text())["from"]
        except (OSError, ValueError, KeyError):
            return False
        return target.exists() and all(
            self._hash(self.root / path) == digest for path, digest in record.items()
        )

    def _compile_one(self, source: Path, target: Path) -> None:
        fresh, rule = target.with_suffix(".new"), target.with_suffix(".d")
        command = [*self.command, "-MMD", "-MF", str(rule), self.kind]
        command += [str(source.relative_to(self.root)), "-o", str(fresh)]
        done = subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CompileError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
        if done.stderr and not self.is_quiet:
            print(done.stderr, end="")
        read = {str(p): self._hash(self.root / p) for p in _prerequisites(rule)}
        record = {"from": read, "said": done.stderr}
        target.with_suffix(".json").write_text(json.dumps(record))
        fresh.replace(target)
        rule.unlink()

    def _hash(self, path: Path) -> str | None:
        if path not in self._hashes:
            try:
                self._hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:  # a header that went away
                self._hashes[path] = None
        return self._hashes[path]


def _prerequisites(rule: Path) -> list[Path]:
    """What the compiler's rule for make names behind the colon."""
    text = rule.read_text().replace("\\\n", " ").partition(":")[2]
    return [Path(re.sub(r"\\(.)", r"\1", p)) for p in re.findall(r"(?:\\.|\S)+", text)]


@cache
def _version(compiler: str) -> str:
    found = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False
    )
    return found.stdout
