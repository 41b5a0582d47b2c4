"""``python -m pai_torchacc`` and its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pai_torchacc.bench import beside
from pai_torchacc.commands.usage import CommandLine, Result, UsageError, count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the process's exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if words[:1] == ["bench"] and words[1:2] and words[1] in beside.FORWARDED:
            return beside.run(words[1:])
        return _commands().run(words)
    except UsageError as error:
        print(f"python -m pai_torchacc bench: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("matplotlib", "rich", "sklearn"):
            raise
        text = f"this needs {package}: pip install 'pai_torchacc[bench]'"
        print(f"python -m pai_torchacc: {text}", file=sys.stderr)
        return 2


def _commands() -> CommandLine:
    commands = CommandLine(
        "python -m pai_torchacc",
        "Makes unmodified PyTorch programs faster, and reports what it did.",
    )
    add = commands.add
    for name, about in (
        ("info", "what runs here: versions, CPU, operators and their rows"),
        ("env", "what to paste into a bug report: system, versions, settings"),
    ):
        add(name, partial(_show, name), about)

    report = add("report", _report, "show a report that a process wrote as JSON")
    report.add_argument("file", help="what PTAC_REPORT=FILE.json or run --json wrote")

    demo = add(
        "demo", _demo, "train a CNN on handwritten digits, stock and accelerated"
    )
    demo.add_argument("--epochs", type=count, default=12, help="default: %(default)s")
    demo.add_argument("--threads", type=count, help="default: torch's own choice")
    demo.add_argument("--out", default="out", metavar="DIR", help="where the plot goes")

    bench = add("bench", _bench, "measure against stock, interleaved in one process")
    bench.add_argument(
        "names",
        nargs="*",
        help="parts of names of figures or workloads; default: all. First of them "
        "zoo: models of many kinds, or peers: other engines, in a checkout of the "
        "repository; bench zoo --help",
    )
    bench.add_argument("--quick", action="store_true", help="under two minutes")
    bench.add_argument(
        "--against", choices=("compile",), help="another rival beside stock"
    )
    bench.add_argument(
        "--check", action="store_true", help="compare with benchmarks/targets.toml"
    )
    bench.add_argument("--threads", type=count, nargs="+", help="default: 1, 2, 4 ...")
    bench.add_argument("--csv", metavar="FILE", help="write the figures here")
    bench.add_argument("--plot", metavar="FILE", help="draw the ratios here (PNG)")

    verify = add("verify", _verify, "hold every row of this machine to its contract")
    verify.add_argument(
        "--numerics", choices=("exact", "close", "fast"), default="close"
    )

    calibrate = add("calibrate", _calibrate, "measure this machine and write its table")
    calibrate.add_argument("file", help="the table; use it with PTAC_CALIBRATION")
    calibrate.add_argument(
        "--ops",
        nargs="+",
        metavar="OP",
        help="only these operators; what FILE has of others stays",
    )
    calibrate.add_argument(
        "--kinds",
        nargs="+",
        metavar="PATTERN",
        help="only kinds of them with such names, as '1x1*'; others stay likewise",
    )
    calibrate.add_argument(
        "--rows",
        nargs="+",
        metavar="PATTERN",
        help="only rows of them with such names, as '*avx512'; what FILE has of others "
        "there stays",
    )
    calibrate.add_argument(
        "--generic",
        action="store_true",
        help="also write generic-ISA.csv beside it, for other CPUs",
    )
    calibrate.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: the current GPU, by whose table calls there are decided",
    )

    run = add("run", _run, "run a script with everything enabled, its children too")
    _add_device(run)
    run.add_argument("-m", dest="is_module", action="store_true", help="a module name")
    run.add_argument(
        "script", nargs="?", help="the script, - for standard input, or a module"
    )
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")

    launch = add(
        "launch",
        _launch,
        "torchrun with everything enabled in every rank",
        passes_on=True,
    )
    _add_device(launch)
    launch.add_argument(
        "args", nargs=argparse.REMAINDER, help="options of torchrun, script, arguments"
    )
    return commands


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device", choices=("cpu",), help="have a script that names CUDA use the CPU"
    )


def _show(command: str, options: argparse.Namespace) -> Result:
    """Print the document that a command is about."""
    module = import_module(f"pai_torchacc.commands.{command}")
    document = module.document()
    print(module.as_text(document))
    return document, 0


def _report(options: argparse.Namespace) -> Result:
    from pai_torchacc.commands import saved_report

    document = saved_report.read(options.file)
    print(saved_report.as_text(options.file, document))
    return document, 0


def _demo(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import demo

    return demo.run(options.epochs, options.threads, Path(options.out)), 0


def _bench(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import run

    return run.run(options)


def _verify(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import contract

    return contract.run(options.numerics)


def _calibrate(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import calibrate, calibrate_cuda

    if options.device == "cuda":
        if options.generic:
            options.parser.error("--generic is for CPUs")
        if options.kinds or options.rows:
            options.parser.error("--kinds and --rows are for CPUs")
        return calibrate_cuda.run(Path(options.file), options.ops), 0
    if (options.kinds or options.rows) and not options.ops:
        options.parser.error("--kinds and --rows are for what --ops names")
    if options.rows and options.generic:
        options.parser.error("--generic takes all rows")
    chosen = calibrate.chosen(options.ops, options.kinds, options.rows)
    return calibrate.run(Path(options.file), chosen, options.generic), 0


def _run(options: argparse.Namespace) -> Callable[[], Any]:
    from pai_torchacc.commands import run

    if options.script is None:
        options.parser.error("name a script to run, or a module after -m")
    return run.prepare(
        options.script, options.args, options.is_module, options.json, options.device
    )


def _launch(options: argparse.Namespace) -> Callable[[], Any]:
    from pai_torchacc.commands import launch

    if not options.args:
        options.parser.error("name a script to launch, after options of torchrun")
    return launch.prepare(options.args, options.json, options.device)


if __name__ == "__main__":
    sys.exit(main())
