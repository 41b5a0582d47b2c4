"""``python -m benchmarks memory``: allocators, each in fresh processes.

``variants`` says what is compared, ``child`` is the program that runs one of them,
``driver`` starts such programs, ``figures`` makes numbers of what they say, ``run`` is
the command.
"""
