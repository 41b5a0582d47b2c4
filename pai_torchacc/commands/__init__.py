"""The command line: ``python -m pai_torchacc``."""
