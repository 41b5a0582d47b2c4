"""Several processes that train together: torch's engine, tuned, watched, explained.

``launch`` and ``run --device cpu`` use :mod:`.cores` and :mod:`.on_cpu`. The switch
``tune_ddp`` is in :mod:`.tuning`, ``watch_ranks`` in :mod:`.watching`; ``tune_fsdp`` is
in :mod:`.fsdp`. What a link costs is measured by :mod:`.probe` and predicted by
:mod:`.cost`.
"""
