"""The thesis' affinity settings as it writes them: which core numbers each container may run on (3.4.2, 4.2.3).

Socket ``s`` of ``n_socket`` has the cores ``s * p`` to ``s * p + p - 1``; containers and processes are counted from 1.

Equations 4.3 to 4.7 are 3.2 and 3.6 to 3.9 for the containers of one host; 3.14 to 3.23 add a host number. Equation
3.13 has the ``- 1`` of 3.2 inside the fraction, which gives no whole number and is read as a misprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

Mapped = tuple[tuple[int, ...], tuple[int, ...]]
"""The numbers of CPU_s,[x,y], and the sockets s of MEM_s."""


@dataclass(frozen=True)
class Equations:
    """``n_ctn`` containers of ``n_cpu`` cores each, on ``n_socket`` sockets of ``p`` cores."""

    n_socket: int
    p: int
    n_ctn: int
    n_cpu: int

    def any(self) -> Mapped:
        """3.2 and 4.3: all containers share the first cores of every socket."""
        each = self.n_cpu * self.n_ctn // self.n_socket
        sockets = range(self.n_socket)
        return tuple(core for s in sockets for core in range(s * self.p, s * self.p + each)), tuple(sockets)

    def cpu(self, i: int) -> Mapped:
        """3.3 to 3.5: container ``i`` has cores of its own, as many from each socket."""
        share = self.n_cpu // self.n_socket
        cores: list[int] = []
        for s in range(self.n_socket):
            x, y = s * self.p + (i - 1) * share, s * self.p + i * share - 1
            cores += range(x, y + 1)
        return tuple(cores), tuple(range(self.n_socket))

    def cpumem(self, i: int) -> Mapped:
        """3.6 to 3.9 and 4.4 to 4.7: container ``i`` has cores of one socket, and that socket's memory."""
        n_cps = self.n_ctn // self.n_socket
        s = ceil(Fraction(i, n_cps)) - 1
        x = s * self.p + self.n_cpu * ((i - 1) - s * n_cps)
        y = s * self.p + self.n_cpu * (i - s * n_cps) - 1
        return tuple(range(x, y + 1)), (s,)

    def cpumempin(self, i: int, j: int, r: int | Fraction = 1) -> int:
        """3.10 to 3.12: the core of CPUMEM's that process ``j`` of container ``i`` has, ``r`` being on a core."""
        return self.cpumem(i)[0][0] + ceil(Fraction(j) / r) - 1
