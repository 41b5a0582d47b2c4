"""``python -m pai_torchacc run``: a script with everything enabled, unedited.

The script is enabled when it first imports torch, and so is every Python process that
it starts: ``PTAC_ENABLE`` is set, and the folder ``startup`` stands first in
``PYTHONPATH``, whose ``sitecustomize`` does for children what is done here.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pkgutil
import runpy
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

STARTUP = Path(__file__).parent / "startup"


def run(script: str, args: list[str], is_module: bool, json_file: str | None) -> None:
    """Run a script or module as ``python`` would; its exit is the process's."""
    os.environ.setdefault("PTAC_ENABLE", "all")
    if json_file:
        atexit.register(_write_report, json_file)
    _put_first("PYTHONPATH", str(STARTUP))
    enable_with_torch()
    sys.argv = [script, *args]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        # "python -m" put the current folder there, "python script.py" its own.
        del sys.path[0]
        if pkgutil.get_importer(script) is None:  # folders and archives add themselves
            sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def _write_report(path: str) -> None:
    from pai_torchacc import receipt

    Path(path).write_text(receipt.report("json") + "\n", encoding="utf-8")


def _put_first(variable: str, entry: str) -> None:
    rest = [
        e for e in os.environ.get(variable, "").split(os.pathsep) if e and e != entry
    ]
    os.environ[variable] = os.pathsep.join([entry, *rest])


def enable_with_torch() -> None:
    """Enable now if torch is imported, else as soon as it is."""
    if "torch" in sys.modules:
        _enable()
    elif not any(isinstance(f, _AfterTorch) for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def _enable() -> None:
    import pai_torchacc

    pai_torchacc.enable()


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
