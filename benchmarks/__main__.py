"""``python -m benchmarks memory | conv | quantization | lr | zoo | peers | ...``.

``python -m pai_torchacc bench`` has the other figures, and ``pai_torchacc.bench`` what
all share: workloads, interleaved timing, tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from pai_torchacc.commands.usage import CommandLine, Result, count

WAYS = ("inference", "training")
"""Of measuring a model of the zoo."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the process's exit status."""
    commands = CommandLine("python -m benchmarks", "Measures beside stock and peers.")
    _add_memory(commands)
    _add_conv(commands)
    _add_quantization(commands)
    _add_learning_rate(commands)
    _add_zoo(commands)
    _add_peers(commands)
    _add_loaders(commands)
    _add_distributed(commands)
    _add_batch_size(commands)
    _add_gpu(commands)
    return commands.run(arguments)


def _add_figures(command: argparse.ArgumentParser, *, checks: bool = True) -> None:
    """Where figures go, and what they are compared with."""
    if checks:
        command.add_argument(
            "--check", action="store_true", help="compare with benchmarks/targets.toml"
        )
    command.add_argument("--csv", metavar="FILE", help="write the figures here")


def _add_threads(
    command: argparse.ArgumentParser, default: str = "1, 2, 4 ..."
) -> None:
    command.add_argument("--threads", type=count, nargs="+", help=f"default: {default}")


def _add_memory(commands: CommandLine) -> None:
    memory = commands.add("memory", _memory, "compare allocators in fresh processes")
    memory.add_argument("--workloads", nargs="+", metavar="NAME", help="or: micro")
    memory.add_argument(
        "--variants", nargs="+", metavar="NAME", help="stock is always among them"
    )
    _add_threads(memory, "1, 2")
    memory.add_argument("--processes", type=count, help="of each variant; default: 5")
    memory.add_argument("--steps", type=count, help="of each process")
    memory.add_argument(
        "--quick", action="store_true", help="two processes of few steps"
    )
    _add_figures(memory)
    memory.add_argument(
        "--replay", action="store_true", help="placement alone, of recorded training"
    )
    memory.add_argument(
        "--prefix",
        default="",
        metavar="COMMAND",
        help="such as taskset -c 0",
    )


def _add_conv(commands: CommandLine) -> None:
    conv = commands.add(
        "conv", _run_of("convolutions"), "compare algorithms of convolution"
    )
    conv.add_argument("--shapes", nargs="+", metavar="N,C,WIDTH,K[,KERNEL]")
    _add_threads(conv)
    conv.add_argument("--numerics", choices=("close", "fast"), default="close")
    _add_figures(conv)


def _add_quantization(commands: CommandLine) -> None:
    quantization = commands.add(
        "quantization",
        _run_of("quantization.run"),
        "compare quantized models with float32",
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
    _add_threads(quantization)
    quantization.add_argument(
        "--quick", action="store_true", help="fewer cases, shorter"
    )
    _add_figures(quantization)
    quantization.add_argument(
        "--plot", metavar="FILE", help="draw the ratios here (PNG)"
    )


def _add_learning_rate(commands: CommandLine) -> None:
    rate = commands.add(
        "lr", _run_of("learning_rate.run"), "compare adaptive rates with the user's"
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
    _add_figures(rate)
    rate.add_argument("--plot", metavar="FILE", help="draw loss curves here (PNG)")


def _add_peers(commands: CommandLine) -> None:
    about = "plans beside ONNX Runtime, OpenVINO and torch.compile"
    peers = commands.add("peers", _run_of("peers.run"), about)
    peers.add_argument("names", nargs="*", help="parts of models' names; default: all")
    peers.add_argument(
        "--rivals",
        nargs="+",
        choices=("onnxruntime", "openvino", "inductor"),
        default=["onnxruntime", "openvino"],
        help="default: ONNX Runtime and OpenVINO",
    )
    peers.add_argument(
        "--batches", nargs="+", type=count, default=(1, 8), help="default: 1 8"
    )
    _add_threads(peers, "1")
    peers.add_argument("--quick", action="store_true", help="fewer and shorter blocks")
    _add_figures(peers, checks=False)


def _add_zoo(commands: CommandLine) -> None:
    zoo = commands.add("zoo", _run_of("zoo.run"), "models of many kinds, by enable()")
    zoo.add_argument(
        "names",
        nargs="*",
        help="groups, and parts of models' names; default: all but the large ones of "
        "torchvision, timm and transformers",
    )
    zoo.add_argument(
        "--all", action="store_true", help="also these, where they are installed"
    )
    zoo.add_argument(
        "--list", action="store_true", help="print the models and measure none"
    )
    zoo.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS, help="default: both"
    )
    zoo.add_argument(
        "--levels",
        nargs="+",
        choices=("exact", "close", "fast"),
        default=["close"],
        help="of numerics; default: close",
    )
    _add_threads(zoo, "1")
    zoo.add_argument("--quick", action="store_true", help="fewer and shorter blocks")
    zoo.add_argument(
        "--check",
        action="store_true",
        help="exit status 1 where a model stays slower than stock, or fails with us",
    )
    _add_figures(zoo, checks=False)
    zoo.add_argument("--plot", metavar="FILE", help="draw the ratios here (PNG)")


def _add_loaders(commands: CommandLine) -> None:
    loaders = commands.add("loaders", _run_of("loaders"), "epochs of data loaders")
    loaders.add_argument("names", nargs="*", help="parts of names; default: all")
    _add_threads(loaders, "1, 2")
    loaders.add_argument("--quick", action="store_true", help="fewer epochs")
    _add_figures(loaders)


def _add_distributed(commands: CommandLine) -> None:
    distributed = commands.add(
        "distributed",
        _run_of("distributed.run"),
        "ranks here and on a slow link, stock and tuned",
    )
    distributed.add_argument(
        "--parts",
        nargs="+",
        choices=[
            "script",
            "steps",
            "divided",
            "link",
            "fsdp",
            "watch",
            "model",
            "simulated",
        ],
        help="default: all",
    )
    distributed.add_argument("--quick", action="store_true", help="fewer blocks")
    _add_figures(distributed, checks=False)


def _add_batch_size(commands: CommandLine) -> None:
    size = commands.add(
        "batch_size", _run_of("batch_size.run"), "find_batch_size and all sizes"
    )
    size.add_argument("--models", nargs="+", metavar="NAME", help="default: all")
    size.add_argument(
        "--quick", action="store_true", help="two short turns, accelerated only"
    )
    _add_figures(size, checks=False)
    size.add_argument("--plot", metavar="FILE", help="draw throughputs here (PNG)")


def _add_gpu(commands: CommandLine) -> None:
    gpu = commands.add(
        "gpu", _run_of("gpu.run"), "operators, optimizers and models on a CUDA device"
    )
    gpu.add_argument(
        "--budget",
        type=count,
        default=150,
        metavar="SECONDS",
        help="what has not begun by then is left out; default: %(default)s",
    )
    gpu.add_argument(
        "--parts",
        nargs="+",
        choices=[
            "ceilings",
            "epilogues",
            "launches",
            "operators",
            "quantized",
            "optimizers",
            "models",
            "first-step",
            "graphs",
            "compiled",
        ],
        help="default: all",
    )
    _add_figures(gpu, checks=False)


def _run_of(name: str) -> Callable[[argparse.Namespace], Result]:
    """A module's ``run``, for a module that is imported once it is asked for."""

    def run(options: argparse.Namespace) -> Result:
        found: Result = import_module(f"benchmarks.{name}").run(options)
        return found

    return run


def _memory(options: argparse.Namespace) -> Result:
    from benchmarks.memory import replay, run

    return replay.run(options) if options.replay else run.run(options)


if __name__ == "__main__":
    sys.exit(main())
