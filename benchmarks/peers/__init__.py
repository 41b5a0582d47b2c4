"""Inference by plans beside the engines that people export to."""
