"""Measuring beside stock and peers; run from the root of the repository."""
