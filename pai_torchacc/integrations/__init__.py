"""Callbacks for libraries that run the training loop themselves.

Each module needs its library, which is imported with it and not before.
"""
