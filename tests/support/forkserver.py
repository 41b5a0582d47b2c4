"""Python programs in processes of their own, without importing torch for each.

A server imports torch once, where it can with what the first optimizer of a process
imports in three more seconds, and forks for every program. The fork leaves the server's
loop and runs the program as ``python`` would: its own ``__main__``, environment,
standard streams, exit handlers and exit status. This package is never imported before
the fork.

The garbage collector leaves torch's objects alone. Looking at half a million of them,
the last time when the process ends, copies the pages they lie on.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
from contextlib import suppress
from pathlib import Path
from typing import Any


class Server:
    """Programs run one after the other; the server starts with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def run(
        self, arguments: list[str], env: dict[str, str], cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What ``python`` gives for ``-c PROGRAM``, ``-m MODULE`` or a script.

        Of the environment only PTAC_* may differ.
        """
        process = self._started(env)
        assert process.stdin and process.stdout
        with tempfile.TemporaryDirectory() as folder:
            streams = [str(Path(folder) / name) for name in ("stdout", "stderr")]
            request = {"arguments": arguments, "env": env, "to": streams}
            request["cwd"] = str(cwd or Path.cwd())
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            status = json.loads(process.stdout.readline())
            texts = [Path(path).read_text(encoding="utf-8") for path in streams]
        return subprocess.CompletedProcess(arguments, status, *texts)

    def _started(self, env: dict[str, str]) -> subprocess.Popen[str]:
        if self._process is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                text=True,
            )
        return self._process

    def stop(self) -> None:
        """End the server, if it was started."""
        if self._process is not None and self._owner == os.getpid():
            self._process.communicate()
        self._process = None


def serve() -> dict[str, Any]:
    """Fork for each request; returns in the forked processes only."""
    import torch

    # With dynamo a torch for CUDA imports triton, which complains, when a process ends,
    # of objects that the collector has left alone.
    if importlib.util.find_spec("triton") is None:
        import torch._dynamo  # noqa: F401
    assert not [name for name in sys.modules if name.startswith("pai_torchacc")]
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(request: dict[str, Any]) -> None:
    """Make this process what a fresh one would be."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = io.StringIO()
    for descriptor, path in enumerate((os.devnull, *request["to"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.modules["__main__"] = types.ModuleType("__main__")
    with suppress(KeyError):
        del sys.modules["forkserver"]


def run(arguments: list[str]) -> None:
    """Run a program in the module ``__main__`` that has been made for it."""
    kind, sys.argv = arguments[0], list(arguments)
    main = vars(sys.modules["__main__"])
    if kind == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy._run_module_as_main(arguments[1])
    elif kind == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        exec(compile(arguments[1], "<string>", "exec"), main)  # the tests' own text
    else:
        sys.path[0] = str(Path(kind).parent)
        main["__file__"] = kind
        exec(compile(Path(kind).read_text(), kind, "exec"), main)


if __name__ == "__main__":
    asked = serve()
    become(asked)
    run(asked["arguments"])
