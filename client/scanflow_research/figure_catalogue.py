"""All figures and all experiments, by name. The figures are in ``figures.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from scanflow.app.yaml_text import read_yaml
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
from scanflow_research.experiment import Experiment, read_cpu_field
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

EXPERIMENTS: Mapping[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


@cache
def load_catalogue() -> tuple[Figure, ...]:
    """Return the figures, in the order of the sources."""
    document = read_yaml(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))
    figures = TypeAdapter(tuple[Figure, ...]).validate_python(document["figures"])
    return tuple(sorted(map(_fit_machine, figures), key=_sort_key))


def _fit_machine(figure: Figure) -> Figure:
    """Return a figure that needs another CPU than this machine's as one that cannot be tested."""
    if figure.cpu in read_cpu_field("vendor_id"):
        return figure
    return replace(figure, experiment="", claims=(), panels=(), untested=f"an {figure.cpu} CPU is needed")


def _sort_key(figure: Figure) -> tuple[int, list[int]]:
    """Return the position of a figure: its source, chapter and number."""
    source, _, name = figure.source.partition(", ")
    return _SOURCES.index(source), [int(number) for number in re.findall(r"\d+", name)]


def select_named(names: Sequence[str]) -> list[Figure]:
    """Return the figures of these names, in the order of the sources.

    Raises:
        NotFoundError: there is no such figure; the message names the nearest.
    """
    valid = {figure.name for figure in load_catalogue()}
    for name in names:
        if name not in valid:
            raise NotFoundError(
                f"There is no figure {name!r}.{did_you_mean(name, sorted(valid))} List them: scanflow reproduce --list"
            )
    return [figure for figure in load_catalogue() if figure.name in set(names)]
