"""Shares of the traffic, and when a canary is promoted, as they are written on a command line."""

from __future__ import annotations

import re

from scanflow.backends.service_records import CanaryPolicy
from scanflow.errors import InvalidError

_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_SHARE = re.compile(rf"\s*({_NUMBER})\s*(%?)\s*")
_RULE = re.compile(rf"\s*(errors|p95|mean)\s*<=\s*({_NUMBER})\s*x\s*(?:\+\s*({_NUMBER})\s*)?")


def parse_share(text: str) -> float:
    """Return ``10%`` or ``0.1`` as a share from 0 to 1.

    Raises:
        InvalidError: it is none.
    """
    match = _SHARE.fullmatch(text)
    share = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= share <= 1:
        forgot = match is not None and not match[2] and 1 < share <= 100
        advice = f" Did you mean '{text.strip()}%'?" if forgot else ""
        raise InvalidError(
            f"The weight {text!r} is not a share of the requests, from 0% to 100%. Write 10% or 0.1.{advice}"
        )
    return share


def parse_rule(text: str, *, after: int, within_s: float | None = None) -> CanaryPolicy:
    """Return the rule ``p95<=1.2x`` or ``errors<=1x+0.01``: promote while this holds, compared to the current version.

    Raises:
        InvalidError: it is no such rule.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise InvalidError(
            f"The rule {text!r} cannot be read. Write 'p95<=1.2x' (at most 1.2 times that of the current version), "
            "'errors<=1x+0.01' (its share of failed requests and one in a hundred more), or 'mean<=1.1x'."
        )
    rule = {"metric": match[1], "ratio": float(match[2]), "slack": float(match[3] or 0.0), "after_requests": after}
    return CanaryPolicy.model_validate(rule if within_s is None else {**rule, "within_s": within_s})
