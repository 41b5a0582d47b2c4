"""``python -m benchmarks gpu``: operators, optimizers and models on a CUDA device."""
