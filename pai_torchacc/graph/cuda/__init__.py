"""Calls on a CUDA device: captured once as a CUDA graph, then replayed.

``capturing.py`` is all that is asked of ``torch.cuda``; tests put another object in its
place. ``watching.py`` looks at calls before they are captured, ``guards.py`` compares
what a graph has been captured with, ``captured.py`` is one graph, and ``site.py`` has
those of one module or function.
"""
