"""Python programs in processes of their own, without importing torch for each.

A server imports torch once and forks for every program. The fork leaves the server's
loop and runs the program as ``python -c`` would: its own ``__main__``, environment,
standard streams, exit handlers and exit status. This package is never imported before
the fork.
"""

from __future__ import annotations

import io
import json
import os
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
        self, program: str, args: tuple[str, ...], env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """What ``python -c`` gives; of the environment only PTAC_* may differ."""
        process = self._started(env)
        assert process.stdin and process.stdout
        with tempfile.TemporaryDirectory() as folder:
            streams = [str(Path(folder) / name) for name in ("stdout", "stderr")]
            request = {"program": program, "args": args, "env": env, "to": streams}
            request["cwd"] = str(Path.cwd())
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            status = json.loads(process.stdout.readline())
            texts = [Path(path).read_text(encoding="utf-8") for path in streams]
        return subprocess.CompletedProcess(["-c", *args], status, *texts)

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
    import torch  # noqa: F401

    assert not [name for name in sys.modules if name.startswith("pai_torchacc")]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(request: dict[str, Any]) -> types.CodeType:
    """Make this process what a fresh one would be; the program's code."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["-c", *request["args"]]
    sys.path[0] = ""
    sys.stdin = io.StringIO()
    for descriptor, path in enumerate((os.devnull, *request["to"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.modules["__main__"] = types.ModuleType("__main__")
    return compile(request["program"], "<string>", "exec")


if __name__ == "__main__":
    code = become(serve())
    with suppress(KeyError):
        del sys.modules["forkserver"]
    exec(code, vars(sys.modules["__main__"]))  # the tests' own text
