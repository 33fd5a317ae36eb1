"""All figures and all experiments, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scanflow.errors import NotFoundError, did_you_mean
from scanflow_client.reproduction import allocation, autoscaling, hpc, inference, loop, scheduling, serverless, services
from scanflow_client.reproduction.experiment import Experiment
from scanflow_client.reproduction.figure import Figure

_MODULES = (hpc, inference, loop, autoscaling, services, scheduling, serverless, allocation)

_SOURCES = ("Thesis", "Secure Inference at Scale in Kubernetes", "Decker et al.", "Wang et al.")


def _place(figure: Figure) -> tuple[int, list[int]]:
    """Return where a figure is: its source, and the numbers of its chapter and itself."""
    source, _, name = figure.source.partition(", ")
    return _SOURCES.index(source), [int(number) for number in re.findall(r"\d+", name)]


FIGURES: tuple[Figure, ...] = tuple(sorted((figure for module in _MODULES for figure in module.FIGURES), key=_place))
EXPERIMENTS: Mapping[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


def select_named(names: Sequence[str]) -> list[Figure]:
    """Return the figures of these names, in the order of the sources.

    Raises:
        NotFoundError: names the nearest.
    """
    known = {figure.name for figure in FIGURES}
    for name in names:
        if name not in known:
            raise NotFoundError(
                f"There is no figure {name!r}.{did_you_mean(name, sorted(known))} List them: scanflow reproduce --list"
            )
    return [figure for figure in FIGURES if figure.name in set(names)]
