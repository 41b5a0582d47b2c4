"""Which models are asked for, and which packages they lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.zoo import (
    images,
    patches,
    sequences,
    tables,
    timm_models,
    torchvision_models,
    transformers_models,
)
from benchmarks.zoo.model import MODELS
from pai_torchacc.commands.usage import UsageError

MODULES = (
    *(images, patches, sequences, tables),
    *(torchvision_models, timm_models, transformers_models),
)
"""Whose models are on the list."""


def chosen(words: Sequence[str], takes_all: bool) -> tuple[list[str], list[str]]:
    """Names of models to measure, and packages that others lack that were asked for.

    Raises UsageError where a word leads to none that can be measured.
    """
    for word in words:
        found = named([word], takes_all)
        if not any(MODELS[n].is_installed for n in found):
            raise UsageError(f"{word}: {not_installed(_groups(found))}")
    names = named(words, takes_all)
    missing = [n for n in names if not MODELS[n].is_installed]
    return [n for n in names if n not in missing], _groups(missing)


def named(words: Sequence[str], takes_all: bool) -> list[str]:
    """Names of models that are asked for, whether they can be measured or not.

    Words that are names of groups say which; without, it is those of no package, or
    all. Other words are parts of names, and narrow that down. One that fits nothing
    there may fit a large model, unless groups are named. Raises UsageError where a
    word fits nothing.
    """
    known = _groups(MODELS)
    groups = [w for w in words if w in known]
    parts = [w for w in words if w not in known]
    wanted = [
        name
        for name, m in MODELS.items()
        if (m.group in groups if groups else takes_all or not m.is_large)
    ]
    found = [] if parts else wanted
    for part in parts:
        fitting = _fitting(part, wanted) or ([] if groups else _fitting(part, MODELS))
        if not fitting:
            where = f"of {', '.join(groups)} " if groups else ""
            raise UsageError(
                f"no model {where}is named like {part}; "
                f"groups: {', '.join(known)}; --list prints the models"
            )
        found += fitting
    return [n for n in MODELS if n in found]


def _groups(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(MODELS[n].group for n in names))


def _fitting(part: str, names: Iterable[str]) -> list[str]:
    return [n for n in names if part.lower() in n.lower()]


def not_installed(packages: Sequence[str]) -> str:
    """One line about packages."""
    return f"not installed: {', '.join(packages)}: pip install 'pai-torchacc[zoo]'"
