"""What the command line checks before it runs or measures anything."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterable
from pathlib import Path


class UsageError(Exception):
    """A command cannot do what it was asked for; one line for who asked."""


def count(text: str) -> int:
    """A number of things, for argparse: at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return number


def check_environment() -> None:
    """Raise UsageError where a ``PTAC_*`` variable has a value that nobody knows."""
    from pai_torchacc import _host, _options, _table

    try:
        config = _options.config_from_environment()
        _options.features_from_environment()
        c = _host.extension()
        _host.limit_isa(c)
        _table.find(c, config.calibration)
    except _host.Unavailable:
        pass  # which enable() tells
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None


def check_outputs(files: Iterable[str | os.PathLike[str] | None]) -> None:
    """Raise OSError unless all of these can be written; None stands for no file."""
    for file in files:
        if file is None:
            continue
        path = Path(file)
        if path.is_dir():
            raise _os_error(errno.EISDIR, path)
        if path.exists() and not os.access(path, os.W_OK):
            raise _os_error(errno.EACCES, path)
        if not path.exists() and not path.parent.is_dir():
            raise _os_error(errno.ENOENT, path.parent)
        if not path.exists() and not os.access(path.parent, os.W_OK):
            raise _os_error(errno.EACCES, path)


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
