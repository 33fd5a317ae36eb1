"""All figures and all experiments, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scanflow.errors import NotFoundError, did_you_mean
from scanflow_research import (
    allocation,
    autoscaling,
    hpc,
    inference_measurements,
    loop_measurements,
    scheduling,
    serverless,
    service_measurements,
)
from scanflow_research.experiment import Experiment
from scanflow_research.figure import Figure

_MODULES = (
    hpc,
    inference_measurements,
    loop_measurements,
    autoscaling,
    service_measurements,
    scheduling,
    serverless,
    allocation,
)

_SOURCES = ("Thesis", "Secure Inference at Scale in Kubernetes", "Decker et al.", "Wang et al.")


def _sort_key(figure: Figure) -> tuple[int, list[int]]:
    """Return the position of a figure: its source, chapter and number."""
    source, _, name = figure.source.partition(", ")
    return _SOURCES.index(source), [int(number) for number in re.findall(r"\d+", name)]


FIGURES: tuple[Figure, ...] = tuple(sorted((figure for module in _MODULES for figure in module.FIGURES), key=_sort_key))
EXPERIMENTS: Mapping[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


def select_named(names: Sequence[str]) -> list[Figure]:
    """Return the figures of these names, in the order of the sources.

    Raises:
        NotFoundError: there is no such figure; the message names the nearest.
    """
    valid = {figure.name for figure in FIGURES}
    for name in names:
        if name not in valid:
            raise NotFoundError(
                f"There is no figure {name!r}.{did_you_mean(name, sorted(valid))} List them: scanflow reproduce --list"
            )
    return [figure for figure in FIGURES if figure.name in set(names)]
