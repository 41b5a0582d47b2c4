"""Engines that a network is exported to, each as a call that gives its outputs.

Every one gets as many threads as torch, float32, and arrays that it need not copy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Prepare = Callable[[nn.Module, Inputs], Callable[[], Any]]

RIVALS: dict[str, Prepare] = {}


def _rival(name: str) -> Callable[[Prepare], Prepare]:
    def add(prepare: Prepare) -> Prepare:
        RIVALS[name] = prepare
        return prepare

    return add


@_rival("onnxruntime")
def onnx_runtime(net: nn.Module, inputs: Inputs) -> Callable[[], Any]:
    """ONNX Runtime, all optimizations, of what torch.onnx exports."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.onnx")
        torch.onnx.export(net, inputs, path, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
    names = [one.name for one in session.get_inputs()]
    given = dict(zip(names, (x.numpy() for x in inputs), strict=True))
    return lambda: session.run(None, given)


@_rival("openvino")
def openvino(net: nn.Module, inputs: Inputs) -> Callable[[], Any]:
    """OpenVINO for least latency, by its own reader of torch's networks."""
    import openvino

    model = openvino.convert_model(net, example_input=inputs)
    for place, x in zip(model.inputs, inputs, strict=True):
        place.get_node().set_partial_shape(openvino.PartialShape(list(x.shape)))
    model.validate_nodes_and_infer_types()
    compiled = openvino.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    given = [x.numpy() for x in inputs]

    def call() -> Any:
        results = request.infer(given, share_inputs=True, share_outputs=True)
        return list(results.values())

    return call


@_rival("inductor")
def inductor(net: nn.Module, inputs: Inputs) -> Callable[[], Any]:
    """torch.compile with frozen weights."""
    from torch._inductor import config

    torch._dynamo.reset()
    compiled = torch.compile(net)

    def call() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    with config.patch(freezing=True):
        call()
    return call
