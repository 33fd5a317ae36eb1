"""The detectors by name: how a workflow's parameter becomes one, and how a saved one is read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.errors import InvalidError, did_you_mean
from scanflow_agents.detectors import storage
from scanflow_agents.detectors.autoencoder import Autoencoder, FittedAutoencoder
from scanflow_agents.detectors.ks import KS, FittedKS
from scanflow_agents.detectors.mmd import MMD, FittedMMD
from scanflow_agents.detectors.port import Detector, Fitted
from scanflow_agents.detectors.prior import ClassPrior, FittedClassPrior
from scanflow_agents.detectors.psi import PSI, FittedPSI

__all__ = ["NAMES", "load", "make"]

NAMES = ("autoencoder", "ks", "mmd", "prior", "psi")


def make(name: str, *, generator: np.random.Generator, options: Mapping[str, Any] | None = None) -> Detector:
    """Return the detector of that name.

    Args:
        name: one of :data:`NAMES`.
        generator: where chance comes from, for those that need it.
        options: fields of the detector's class that are not to have their default.

    Raises:
        InvalidError: no detector, or no option, of that name.
    """
    chosen = dict(options or {})
    try:
        match name:
            case "autoencoder":
                return Autoencoder(generator=generator, **chosen)
            case "ks":
                return KS(**chosen)
            case "mmd":
                return MMD(generator=generator, **chosen)
            case "prior":
                return ClassPrior(**chosen)
            case "psi":
                return PSI(**chosen)
    except TypeError as error:
        raise InvalidError(f"The detector {name!r} cannot have these options ({error}). Leave them out.") from error
    raise InvalidError(f"There is no detector {name!r}.{did_you_mean(name, NAMES)}")


def load(folder: Path) -> Fitted:
    """Return the detector that was saved in ``folder``.

    Raises:
        NotFoundError: none was.
        InvalidError: it is damaged, or of a kind that is not known.
    """
    kind = storage.kind_of(folder)
    try:
        match kind:
            case "autoencoder":
                return FittedAutoencoder.load(folder)
            case "ks":
                return FittedKS.load(folder)
            case "mmd":
                return FittedMMD.load(folder)
            case "prior":
                return FittedClassPrior.load(folder)
            case "psi":
                return FittedPSI.load(folder)
    except KeyError as error:
        raise InvalidError(f"The detector saved in {folder} lacks {error}. Fit it anew and save it.") from error
    raise InvalidError(f"{folder} holds a detector {kind!r}, which is not known.{did_you_mean(kind, NAMES)}")
