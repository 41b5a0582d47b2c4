"""Modules that are planned although nobody has asked for it: proved plain first.

``candidates`` meets modules that are called again and again, ``automatic`` records and
plans them. What a call executes is watched by ``observing``, judged by ``instructions``
and ``trusted``; ``reading`` finds all that it can have read, for guards to compare at
each call; ``agreement`` says whether two recordings are the same.

The argument is this. What a call does follows from what it reads. If all of that is
compared at each call, and a recorded call has changed none of it, then a call that
finds it the same does the same: it computes what the graph says, and changes nothing.
"""
