"""``python -m pai_torchacc run``: a script with everything enabled, unedited.

The script is enabled when it first imports torch, and so is every Python process that
it starts: ``PTAC_ENABLE`` is set, and the folder ``startup`` stands first in
``PYTHONPATH``, whose ``sitecustomize`` does for children what is done here. So that
reports of several processes stand side by side, ``PTAC_REPORT`` becomes absolute and
``PTAC_RUN_PID`` names the first process.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import io
import logging
import os
import pkgutil
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pai_torchacc._report import at_exit
from pai_torchacc.commands.usage import UsageError
from pai_torchacc.distributed import cores, on_cpu

log = logging.getLogger("pai_torchacc")

Program = Callable[[], None]

LAUNCHER = "PTAC_LAUNCH_PID"
"""By which ``launch`` tells the processes it starts which one it is."""

_PR_SET_PDEATHSIG = 1
"""See prctl(2)."""

STARTUP = Path(__file__).parents[1] / "startup"


def prepare(
    script: str,
    args: list[str],
    is_module: bool,
    json_file: str | None,
    device: str | None = None,
) -> Program:
    """Make ready for a script or module; what is returned runs it as ``python`` would.

    ``-`` is a script on standard input. ``device="cpu"`` has scripts that name CUDA run
    on the CPU, see :mod:`pai_torchacc.distributed.on_cpu`. The module ``__main__``
    becomes the program's and stays so, for what runs after its last line. UsageError
    where the script cannot be read.
    """
    program = _program(script, is_module)
    at_exit.note_start()
    prepare_environment("all", device)
    if json_file:
        file = str(Path(json_file).absolute())
        atexit.register(at_exit.write, file, is_json=True)
    enable_with_torch()
    sys.argv = ["-m" if is_module else script, *args]
    return partial(_run, program)


def prepare_environment(features: str, device: str | None) -> None:
    """Set what this process's children start with; users' own settings stay.

    ``features`` are those that are on where ``PTAC_ENABLE`` does not say.
    """
    os.environ.setdefault(at_exit.FIRST_PROCESS, str(os.getpid()))
    os.environ.setdefault("PTAC_ENABLE", features)
    report = os.environ.get("PTAC_REPORT")
    if report and report != "stderr":
        os.environ["PTAC_REPORT"] = str(Path(report).absolute())
    if device == "cpu":
        os.environ[on_cpu.VARIABLE] = device
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _put_first("PYTHONPATH", str(STARTUP))


def start_child() -> None:
    """What a Python process does first that a program under ``run`` has started.

    Nothing in the launcher of ranks, which trains nothing.
    """
    if os.environ.get(LAUNCHER) == str(os.getpid()):
        return
    if os.environ.get(LAUNCHER) == str(os.getppid()):
        _end_with_parent()
    cores.take_share()
    enable_with_torch()


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM once the launcher is gone, however it went."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.environ[LAUNCHER] != str(os.getppid()):  # it went a moment before
            os.kill(os.getpid(), signal.SIGTERM)


def _program(script: str, is_module: bool) -> Program:
    if is_module:
        return lambda: _run_module(script, names_itself=True)
    if script == "-":
        source = sys.stdin.buffer.read()
        return lambda: _run_source(source, "<stdin>", "")
    # Path would drop the "./" that Python keeps.
    path = script if Path(script).is_absolute() else f"{Path.cwd()}/{script}"
    if pkgutil.get_importer(path) is not None:  # a folder or an archive

        def run_inside() -> None:
            _start_path(path)
            _run_module("__main__", names_itself=False)

        return run_inside
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        text = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        raise UsageError(text) from None
    return lambda: _run_source(source, path, str(Path(path).resolve().parent))


def _start_path(entry: str) -> None:
    """Put in place of the current folder, which ``python -m`` put there."""
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, entry)


def _run_module(name: str, names_itself: bool) -> None:
    _new_main()
    runpy._run_module_as_main(name, names_itself)  # which "python -m" calls


def _run_source(source: bytes, path: str, folder: str) -> None:
    """Run a script; its folder is the first to import from."""
    if not sys.flags.safe_path:
        _start_path(folder)
    main = _new_main()
    main.__dict__.update(__file__=path, __cached__=None)
    if path != "<stdin>":
        machinery, is_compiled = importlib.machinery, path.endswith(".pyc")
        source_loader = machinery.SourceFileLoader
        loader = machinery.SourcelessFileLoader if is_compiled else source_loader
        main.__loader__ = loader("__main__", path)
    code = pkgutil.read_code(io.BytesIO(source))  # of a .pyc
    code = code or compile(source, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _new_main() -> ModuleType:
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__loader__ = importlib.machinery.BuiltinImporter
    main.__dict__["__builtins__"] = builtins
    return main


def _run(program: Program) -> None:
    """Whatever shows what ends the program leaves out the frames of this file."""
    try:
        program()
    except BaseException as error:
        hook, trace = sys.excepthook, error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next

        def show(kind: type[BaseException], error: BaseException, _: Any) -> None:
            sys.excepthook = hook
            hook(kind, error.with_traceback(trace), trace)

        sys.excepthook = show
        raise


def _put_first(variable: str, entry: str) -> None:
    rest = os.environ.get(variable, "").split(os.pathsep)
    others = [e for e in rest if e and e != entry]
    os.environ[variable] = os.pathsep.join([entry, *others])


def enable_with_torch() -> None:
    """Enable now if torch is imported, else as soon as it is."""
    at_exit.note_start()
    if "torch" in sys.modules:
        _enable()
    elif not any(isinstance(f, _AfterTorch) for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def _enable() -> None:
    import pai_torchacc

    if on_cpu.is_asked():
        on_cpu.install()
    try:
        pai_torchacc.enable()
    except (OSError, ValueError, Warning) as error:
        # The program has changed what run checked, or makes warnings errors.
        log.error("pai_torchacc is not enabled: %s", error)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, with a loader that enables behind it.

    It stays until torch runs: many programs only ask whether there is a torch.
    """

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or getattr(self._asking, "others", False):
            return None
        self._asking.others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenEnable(spec.loader, self)
        return spec


class _ThenEnable(importlib.abc.Loader):
    """torch's own loader, and one call more."""

    def __init__(self, loader: Any, finder: _AfterTorch):
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        spec.loader = module.__loader__ = self._loader
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        spec._initializing = False  # torch is complete, and others may import it now
        _enable()
