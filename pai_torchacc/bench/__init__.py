"""Measuring: workloads, interleaved timing, tables of results."""
