"""``python -m pai_torchacc info | demo | bench | verify | calibrate | run``.

``bench memory``, ``bench conv``, ``bench quantization`` and ``bench lr`` are
subcommands of their own beside ``bench``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pai_torchacc._usage import UsageError, check_environment, check_outputs, count

MEMORY, CONV, QUANTIZATION = "bench memory", "bench conv", "bench quantization"
LEARNING_RATE = "bench lr"
"""Two words, one subcommand: their options are none of ``bench``'s."""


Add = Callable[[str, Any, str], argparse.ArgumentParser]
"""Makes a subcommand: its name, its function, what it is about."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the process's exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if " ".join(words[:2]) in (MEMORY, CONV, QUANTIZATION, LEARNING_RATE):
        words[:2] = [" ".join(words[:2])]
    options, unknown = _parser().parse_known_args(words)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    with _one_line_for_errors(options.parser):
        check_outputs([options.json])
        check_environment()
    if options.command is _run:
        return _run(options)
    with _one_line_for_errors(options.parser):
        document, status = options.command(options)
        if options.json:
            text = json.dumps(document, indent=2) + "\n"
            Path(options.json).write_text(text, encoding="utf-8")
    return status


@contextmanager
def _one_line_for_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    try:
        yield
    except (UsageError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pai_torchacc",
        description="Makes unmodified PyTorch programs faster, with a receipt.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, function: Any, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "--json", metavar="FILE", help="also write the result here"
        )
        command.set_defaults(command=function, parser=command)
        return command

    add("info", _info, "what runs here: versions, CPU, operators and their rows")

    demo = add(
        "demo", _demo, "train a CNN on handwritten digits, stock and accelerated"
    )
    demo.add_argument("--epochs", type=count, default=12, help="default: %(default)s")
    demo.add_argument("--threads", type=count, help="default: torch's own choice")
    demo.add_argument("--out", default="out", metavar="DIR", help="where the plot goes")

    bench = add("bench", _bench, "measure against stock, interleaved in one process")
    bench.add_argument(
        "names", nargs="*", help="parts of names of figures or workloads; default: all"
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

    _add_memory(add)
    _add_conv(add)
    _add_quantization(add)
    _add_learning_rate(add)

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
        "--generic",
        action="store_true",
        help="also write generic-ISA.csv beside it, for other CPUs",
    )

    run = add("run", _run, "run a script with everything enabled, its children too")
    run.add_argument("-m", dest="is_module", action="store_true", help="a module name")
    run.add_argument(
        "script", nargs="?", help="the script, - for standard input, or a module"
    )
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _add_memory(add: Add) -> None:
    memory = add(MEMORY, _bench_memory, "compare allocators in fresh processes")
    memory.add_argument("--workloads", nargs="+", metavar="NAME", help="or: micro")
    memory.add_argument(
        "--variants", nargs="+", metavar="NAME", help="stock is always among them"
    )
    memory.add_argument("--threads", type=count, nargs="+", help="default: 1, 2")
    memory.add_argument("--processes", type=count, help="of each variant; default: 5")
    memory.add_argument("--steps", type=count, help="of each process")
    memory.add_argument(
        "--quick", action="store_true", help="two processes of few steps"
    )
    memory.add_argument(
        "--check", action="store_true", help="compare with benchmarks/targets.toml"
    )
    memory.add_argument("--csv", metavar="FILE", help="write the figures here")
    memory.add_argument(
        "--replay", action="store_true", help="placement alone, of recorded training"
    )
    memory.add_argument(
        "--prefix",
        default="",
        metavar="COMMAND",
        help="such as taskset -c 0",
    )


def _add_conv(add: Add) -> None:
    conv = add(CONV, _bench_conv, "compare algorithms of convolution")
    conv.add_argument("--shapes", nargs="+", metavar="N,C,WIDTH,K[,KERNEL]")
    conv.add_argument("--threads", type=count, nargs="+", help="default: 1, 2, 4 ...")
    conv.add_argument("--numerics", choices=("close", "fast"), default="close")
    conv.add_argument(
        "--check", action="store_true", help="compare with benchmarks/targets.toml"
    )
    conv.add_argument("--csv", metavar="FILE", help="write the figures here")


def _add_quantization(add: Add) -> None:
    quantization = add(
        QUANTIZATION, _bench_quantization, "compare quantized models with float32"
    )
    quantization.add_argument(
        "--parts",
        nargs="+",
        choices=("linear", "convolution", "model", "trained", "bytes"),
        help="default: all",
    )
    quantization.add_argument(
        "--peers",
        action="store_true",
        help="also those of benchmarks/peers-requirements.txt that are installed",
    )
    quantization.add_argument("--method", help="of quantize_model; default: its own")
    quantization.add_argument(
        "--threads", type=count, nargs="+", help="default: 1, 2, 4 ..."
    )
    quantization.add_argument(
        "--quick", action="store_true", help="fewer cases, shorter"
    )
    quantization.add_argument(
        "--check", action="store_true", help="compare with benchmarks/targets.toml"
    )
    quantization.add_argument("--csv", metavar="FILE", help="write the figures here")
    quantization.add_argument(
        "--plot", metavar="FILE", help="draw the ratios here (PNG)"
    )


def _add_learning_rate(add: Add) -> None:
    rate = add(
        LEARNING_RATE, _bench_learning_rate, "compare adaptive rates with the user's"
    )
    rate.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1], help="default: 0 1"
    )
    rate.add_argument("--problems", nargs="+", metavar="NAME", help="default: all")
    rate.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="default: ours, textbook rules, and those of "
        "benchmarks/peers-requirements.txt that are installed",
    )
    rate.add_argument("--batch", type=count, default=32, help="default: %(default)s")
    rate.add_argument(
        "--scale", type=float, default=1.0, metavar="FACTOR", help="of all epochs"
    )
    for name in ("--label-smoothing", "--label-noise"):
        rate.add_argument(name, type=float, default=0.0, metavar="SHARE")
    rate.add_argument("--adam", action="store_true", help="of Adam and AdamW instead")
    rate.add_argument(
        "--overhead", action="store_true", help="the time that steps take instead"
    )
    rate.add_argument(
        "--check", action="store_true", help="compare with benchmarks/targets.toml"
    )
    rate.add_argument("--csv", metavar="FILE", help="write the figures here")
    rate.add_argument("--plot", metavar="FILE", help="draw loss curves here (PNG)")


Result = tuple[Any, int]


def _info(options: argparse.Namespace) -> Result:
    from pai_torchacc import info

    document = info.document()
    print(info.as_text(document))
    return document, 0


def _demo(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import demo

    return demo.run(options.epochs, options.threads, Path(options.out)), 0


def _bench(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import run

    return run.run(options)


def _bench_memory(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench.memory import replay, run

    return replay.run(options) if options.replay else run.run(options)


def _bench_conv(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import convolutions

    return convolutions.run(options)


def _bench_quantization(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench.quantization import run

    return run.run(options)


def _bench_learning_rate(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench.learning_rate import run

    return run.run(options)


def _verify(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import contract

    return contract.run(options.numerics)


def _calibrate(options: argparse.Namespace) -> Result:
    from pai_torchacc.bench import calibrate

    return calibrate.run(Path(options.file), options.ops, options.generic), 0


def _run(options: argparse.Namespace) -> int:
    from pai_torchacc import run

    if options.script is None:
        options.parser.error("name a script to run, or a module after -m")
    with _one_line_for_errors(options.parser):
        program = run.prepare(
            options.script, options.args, options.is_module, options.json
        )
    program()  # whose errors are its own
    return 0


if __name__ == "__main__":
    sys.exit(main())
