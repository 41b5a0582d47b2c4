"""``python -m benchmarks zoo``: small and medium models of many kinds beside stock.

Each model is measured in inference and in training, by bare ``enable()``. None may be
slower than stock by more than 2 %.
"""
