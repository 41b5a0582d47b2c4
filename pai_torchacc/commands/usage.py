"""Command lines: subcommands, what is checked before they run, errors in one line."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pai_torchacc._version import __version__


class UsageError(Exception):
    """A command cannot do what it was asked for; one line for who asked."""


Result = tuple[Any, int] | Callable[[], Any]
"""A document and the exit status, or what is left to do, whose errors are its own."""


class CommandLine:
    """Subcommands under one name, each with ``--json FILE``."""

    def __init__(self, prog: str, description: str):
        self._parser = argparse.ArgumentParser(prog=prog, description=description)
        self._parser.add_argument(
            "--version", action="version", version=f"pai_torchacc {__version__}"
        )
        self._commands = self._parser.add_subparsers(metavar="command")

    def add(
        self,
        name: str,
        command: Callable[[argparse.Namespace], Result],
        about: str,
        passes_on: bool = False,
    ) -> argparse.ArgumentParser:
        """A subcommand, to add its options to.

        One that ``passes_on`` has ``args``, before which options that it does not know
        are put.
        """
        parser = self._commands.add_parser(name, help=about, description=about)
        parser.add_argument("--json", metavar="FILE", help="also write the result here")
        parser.set_defaults(command=command, parser=parser, passes_on=passes_on)
        return parser

    def run(self, words: Sequence[str] | None) -> int:
        """Run one subcommand, or print the help; the process's exit status."""
        options, unknown = self._parser.parse_known_args(words)
        if "command" not in options:
            self._parser.print_help()
            return 0
        if unknown and options.passes_on:
            options.args = unknown + options.args
        elif unknown:
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        with _one_line_for_errors(options.parser):
            check_outputs([options.json])
            check_environment()
            result = options.command(options)
            if not callable(result):
                document, status = result
                if options.json:
                    text = json.dumps(document, indent=2) + "\n"
                    Path(options.json).write_text(text, encoding="utf-8")
                return status
        result()
        return 0


@contextmanager
def _one_line_for_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    try:
        yield
    except (UsageError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


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
    from pai_torchacc import _environment, _frames, _host
    from pai_torchacc.calibration import in_use

    for text in _environment.unknown_variables():
        print(f"pai_torchacc: {text}", file=sys.stderr)
        _frames.said.add(text)
    try:
        config = _environment.config()
        _environment.features()
        c = _host.extension()
        _host.limit_isa(c)
        in_use.find(c, config.calibration)
    except _host.Unavailable:
        pass  # which enable() tells
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None


def check_outputs(files: Iterable[str | os.PathLike[str] | None]) -> None:
    """Raise OSError unless all of these can be written; None stands for no file."""
    for file in files:
        if file is None:
            continue
        path, number = Path(file), 0
        written = path if path.exists() else path.parent
        if path.is_dir():
            number = errno.EISDIR
        elif written != path and not written.is_dir():
            path, number = written, errno.ENOENT
        elif not os.access(written, os.W_OK):
            number = errno.EACCES
        if number:
            raise OSError(number, os.strerror(number), str(path))
