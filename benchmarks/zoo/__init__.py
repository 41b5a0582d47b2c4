"""``python -m benchmarks zoo``: models of many kinds beside stock, by ``enable()``.

Each is measured in inference and in training. None may be slower than stock by more
than 2 %. ``model.py`` says what a model is; modules of models put theirs on its list.
"""
