"""``python -m benchmarks distributed``: ranks that train together, stock and tuned.

``link`` makes networks of a known rate, ``ranks`` starts programs on them or on this
machine, ``programs`` are what ranks run, ``models`` what they train, ``simulated``
predicts what cannot be run, ``run`` is the command.
"""
