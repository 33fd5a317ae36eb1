"""The thesis' affinity settings as it writes them: which core numbers each container may run on (3.4.2, 4.2.3).

The numbers are the equations' own: socket ``s`` of ``n_socket`` has the cores ``s * p`` to ``s * p + p - 1``, and
containers and processes are counted from 1. What maps them onto a real machine, with its siblings, cores that are
taken, and sockets of different sizes, is :mod:`scanflow.placement.place`.

Equations 4.3 to 4.7 are 3.2 and 3.6 to 3.9 for the containers of one host (``n_ctn`` is then the containers per host,
N_cph); 3.14 to 3.23 are the same again with a host's number, and 3.23 is 3.12 for r = 1. Equation 3.13 has the ``- 1``
of 3.2 inside the fraction, which gives no whole number of cores and is read as a misprint.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NamedTuple

from scanflow.errors import InvalidError


class Mapped(NamedTuple):
    """What a container (or a process in it) is mapped to."""

    cores: tuple[int, ...]
    """The numbers of CPU_s,[x,y]."""

    memory: tuple[int, ...]
    """The sockets s of MEM_s."""


def any_(*, n_socket: int, p: int, n_ctn: int, n_cpu: int) -> Mapped:
    """Equations 3.2 and 4.3, ANY: all containers share the first cores of every socket, as many as all ask for.

    Raises:
        InvalidError: ``n_cpu * n_ctn`` is not a multiple of ``n_socket``, or more than there is.
    """
    _positive(n_socket=n_socket, p=p, n_ctn=n_ctn, n_cpu=n_cpu)
    each = _whole(n_cpu * n_ctn, n_socket, f"{n_ctn} containers of {n_cpu} cores", "sockets")
    _fits(each, p, "ANY")
    return Mapped(tuple(core for s in range(n_socket) for core in range(s * p, s * p + each)), tuple(range(n_socket)))


def cpu(i: int, *, n_socket: int, p: int, n_ctn: int, n_cpu: int) -> Mapped:
    """Equations 3.3 to 3.5, CPU: container ``i`` has cores of its own, as many from each socket.

    Raises:
        InvalidError: ``n_cpu`` is not a multiple of ``n_socket``, there are too few cores, or there is no such ``i``.
    """
    _positive(n_socket=n_socket, p=p, n_ctn=n_ctn, n_cpu=n_cpu)
    _counted(i, n_ctn, "container")
    share = _whole(n_cpu, n_socket, f"{n_cpu} cores", "sockets")
    _fits(share * n_ctn, p, "CPU")
    cores: list[int] = []
    for s in range(n_socket):
        x = s * p + (i - 1) * share
        y = s * p + i * share - 1
        cores += range(x, y + 1)
    return Mapped(tuple(cores), tuple(range(n_socket)))


def cpumem(i: int, *, n_socket: int, p: int, n_ctn: int, n_cpu: int) -> Mapped:
    """Equations 3.6 to 3.9 and 4.4 to 4.7, CPUMEM: container ``i`` has cores of one socket, and that socket's memory.

    Raises:
        InvalidError: N_cps = ``n_ctn / n_socket`` is not whole, a container asks for more than a socket has, the
            containers of a socket ask for more than it has, or there is no such ``i``.
    """
    _positive(n_socket=n_socket, p=p, n_ctn=n_ctn, n_cpu=n_cpu)
    _counted(i, n_ctn, "container")
    if n_cpu > p:
        raise InvalidError(f"CPUMEM keeps a container inside a socket: it asks for {n_cpu} cores, a socket has {p}.")
    n_cps = _whole(n_ctn, n_socket, f"{n_ctn} containers", "sockets")
    _fits(n_cps * n_cpu, p, "CPUMEM")
    s = ceil(Fraction(i, n_cps)) - 1
    x = s * p + n_cpu * ((i - 1) - s * n_cps)
    y = s * p + n_cpu * (i - s * n_cps) - 1
    return Mapped(tuple(range(x, y + 1)), (s,))


def cpumempin(
    i: int, j: int, *, n_socket: int, p: int, n_ctn: int, n_cpu: int, r: int | float | Fraction = 1
) -> Mapped:
    """Equations 3.10 to 3.12, CPUMEMPIN: process ``j`` of container ``i`` has one core of CPUMEM's.

    ``r`` is the ratio of processes to cores, N_mpi / N_cpu: 1, or more where processes outnumber cores.

    Raises:
        InvalidError: as :func:`cpumem`; or ``r`` is below 1, or there is no such ``j``.
    """
    cores, memory = cpumem(i, n_socket=n_socket, p=p, n_ctn=n_ctn, n_cpu=n_cpu)
    ratio = Fraction(r).limit_denominator(10**6)
    if ratio < 1:
        raise InvalidError(f"r is the number of processes on a core, 1 or more, and not {r}.")
    _counted(j, int(n_cpu * ratio), "process")
    s = memory[0]
    n_cps = n_ctn // n_socket
    x = s * p + n_cpu * ((i - 1) - s * n_cps) + ceil(Fraction(j) / ratio) - 1
    assert x in cores
    return Mapped((x,), memory)


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1 or number != int(number):
            raise InvalidError(f"{name} is a whole number above zero, and not {number!r}.")


def _counted(number: int, most: int, what: str) -> None:
    if not 1 <= number <= most or number != int(number):
        raise InvalidError(f"There is no {what} {number!r}: they are counted from 1 to {most}.")


def _whole(amount: int, by: int, what: str, over: str) -> int:
    if amount % by:
        raise InvalidError(f"{what} cannot be split evenly over {by} {over}. Take a multiple of {by}.")
    return amount // by


def _fits(asked: int, p: int, setting: str) -> None:
    if asked > p:
        raise InvalidError(f"{setting} would take {asked} cores of each socket, and a socket has {p}.")
