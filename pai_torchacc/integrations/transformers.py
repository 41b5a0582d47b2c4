"""A callback for the ``Trainer`` of Hugging Face's transformers.

::

    from pai_torchacc.integrations.transformers import AccelerationCallback

    trainer = Trainer(..., callbacks=[AccelerationCallback()])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from pai_torchacc.integrations._training import Acceleration, Show


class AccelerationCallback(TrainerCallback):  # type: ignore[misc]
    """Enables when training begins; at its end restores what was on before.

    Then the first process shows the report. Training that ends by an exception is not
    told to callbacks: :func:`pai_torchacc.disable` switches off.

    Parameters
    ----------
    *features : str
        As for :func:`pai_torchacc.enable`.
    report : bool or callable
        Print the report after training, or call this with its text.
    **options
        As for :func:`pai_torchacc.enable`.
    """

    def __init__(self, *features: str, report: Show = True, **options: Any):
        self._acceleration = Acceleration(features, report, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Enable."""
        self._acceleration.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore, and report."""
        self._acceleration.end(shows=state.is_world_process_zero)
