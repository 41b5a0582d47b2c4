"""A callback for Lightning: ``lightning`` or ``pytorch_lightning``, 2.0 or newer.

::

    from pai_torchacc.integrations.lightning import AccelerationCallback

    trainer = Trainer(callbacks=[AccelerationCallback()])
"""

from __future__ import annotations

from typing import Any

from pai_torchacc.integrations._training import Acceleration, Show

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class AccelerationCallback(Callback):  # type: ignore[misc, valid-type]
    """Enables when ``fit``, ``validate``, ``test`` or ``predict`` sets up.

    At the end, also by an exception, what was on before is restored; after ``fit`` the
    process of rank 0 shows the report.

    Parameters
    ----------
    *features : str
        As for :func:`pai_torchacc.enable`.
    report : bool or callable
        Print the report after ``fit``, or call this with its text.
    **options
        As for :func:`pai_torchacc.enable`.
    """

    def __init__(self, *features: str, report: Show = True, **options: Any):
        super().__init__()
        self._acceleration = Acceleration(features, report, options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Enable."""
        self._acceleration.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore, and report after ``fit``."""
        self._acceleration.end(shows=stage == "fit" and trainer.is_global_zero)

    def on_exception(
        self, trainer: Any, pl_module: Any, exception: BaseException
    ) -> None:
        """Restore."""
        self._acceleration.end(shows=False)
