"""``python -m benchmarks lr``: adaptive rates beside the user's.

``problems`` says what is trained, ``methods`` by whom, ``training`` is the loop that
all share, ``figures`` compares final losses, ``adam`` and ``overhead`` are parts of
their own, ``plot`` draws loss curves, ``run`` is the command.
"""
