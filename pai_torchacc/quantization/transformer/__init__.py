"""Layers of ``nn.Transformer`` around int8 ones."""
