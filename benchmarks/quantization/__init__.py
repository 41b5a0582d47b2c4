"""``python -m benchmarks quantization``: quantized beside stock's float32.

``cases`` says what is measured, ``variants`` how a module is quantized by us and by
others, ``figures`` times and compares, ``whole`` looks at trained models, bytes and the
time that quantizing takes, ``run`` is the command.
"""
