"""Granularity: one budget of cores, memory and threads cut into N instances (thesis 4.2.2, equation 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from scanflow.errors import InvalidError

__all__ = ["BudgetShare", "compute_granularity", "cut"]

_RESOURCE_NAMES = {
    "memory_bytes": "bytes of memory",
    "inter": "inter-op threads",
    "intra": "intra-op threads",
    "rest": "REST threads",
}
MILLI = 1000  # the smallest part of a core that can be asked for is a thousandth


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShare:
    """The share of one instance: R and T of equation 4.1. None: the budget has no such amount."""

    cores: float
    """Cores of one instance."""

    memory_bytes: int | None = None
    """Memory of one instance, in bytes."""

    inter: int | None = None
    """Threads that run separate operations in parallel."""

    intra: int | None = None
    """Threads that work within one operation."""

    rest: int | None = None
    """Threads that answer requests."""


def cut(
    instances: int,
    *,
    cores: float,
    memory_bytes: int | None = None,
    inter: int | None = None,
    intra: int | None = None,
    rest: int | None = None,
) -> tuple[BudgetShare, ...]:
    """Return the shares of equation 4.1: S_cpu/N, S_mem/N, N_inter/N, N_intra/N, N_rest/N.

    What does not divide goes to the first shares, which sum to the budget exactly. Cores are cut into whole ones while
    there is one for each, else into thousandths.
    """
    if instances < 1 or instances != int(instances):
        raise InvalidError(f"A budget cannot be cut into {instances!r} instances. Write a whole number above zero.")
    milli = Fraction(cores).limit_denominator(10**6) * MILLI
    if milli <= 0 or milli.denominator != 1:
        raise InvalidError(f"A budget of {cores!r} cores cannot be cut. Write cores above zero, in thousandths.")
    whole = milli % MILLI == 0 and milli >= instances * MILLI
    unit = MILLI if whole else 1
    core_shares = _divide(int(milli) // unit, instances, "cores" if whole else "thousandths of a core")
    budget = {"memory_bytes": memory_bytes, "inter": inter, "intra": intra, "rest": rest}
    parts = {
        name: _divide(amount, instances, _RESOURCE_NAMES[name]) for name, amount in budget.items() if amount is not None
    }
    return tuple(
        BudgetShare(cores=part * unit / MILLI, **{name: amounts[place] for name, amounts in parts.items()})
        for place, part in enumerate(core_shares)
    )


def compute_granularity(
    instances: int | None, cores: float | None, *, cut: float | None, into: int | None
) -> tuple[int | None, float | None]:
    """Return the instances of a service and the cores of each; the ``cut`` cores must divide evenly by ``into``."""
    if cut is None and into is None:
        return instances, cores
    if cut is None or into is None:
        raise InvalidError("A budget of cores needs a number of instances. Write --cut 32 --into 8.")
    if instances is not None or cores is not None:
        raise InvalidError("--cut and --into set the number and size of the instances. Omit --instances and --cores.")
    shares = {share.cores for share in _cut(into, cores=cut)}
    if len(shares) > 1:
        above = (int(cut) // into + 1) * into
        raise InvalidError(
            f"{cut:g} cores cannot be divided evenly over {into} equal instances. Write --cut {above}, or "
            f"--instances {into} --cores {cut / into:g}."
        )
    return into, shares.pop()


_cut = cut  # inside a function whose option is called so


def _divide(amount: int, instances: int, what: str) -> list[int]:
    if amount < instances:
        raise InvalidError(
            f"{amount} {what} cannot be cut into {instances} instances: each needs at least 1. Write at least "
            f"{instances}, or at most {max(amount, 1)} instances."
        )
    share, more = divmod(amount, instances)
    return [share + (place < more) for place in range(instances)]
