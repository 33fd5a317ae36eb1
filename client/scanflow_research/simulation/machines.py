"""The cores of a simulated cluster: which worker has which cores, as assigned by the kubelet's static CPU manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scanflow.placement.mpi.groups import ClusterNode
from scanflow_research.simulation.contention import WorkerRanks


class Machines:
    """Equal nodes with sockets and cores, and their free resources.

    With ``pinned``, a worker gets cores of its own, of one socket where one has enough of them (the first), else of
    all (topology manager's ``best-effort``). Without, cores are only counted, and ranks run on all sockets.
    """

    def __init__(self, n_nodes: int, n_sockets: int, cores_per_socket: int, *, pinned: bool) -> None:
        self._pinned, self._n_sockets = pinned, n_sockets
        self._free = [
            [list(range(socket * cores_per_socket, (socket + 1) * cores_per_socket)) for socket in range(n_sockets)]
            for _ in range(n_nodes)
        ]
        self._per_socket = cores_per_socket
        self.names = tuple(f"node{place}" for place in range(n_nodes))

    @property
    def nodes(self) -> list[ClusterNode]:
        """The nodes with their free resources."""
        return [
            ClusterNode(name=name, cores=sum(map(len, free)), sockets=self._n_sockets)
            for name, free in zip(self.names, self._free, strict=True)
        ]

    def take(self, node: str, count: int) -> tuple[int, ...]:
        """Return the cores that a worker gets on a node, by their numbers there."""
        free = self._free[self.names.index(node)]
        enough = [socket for socket in free if len(socket) >= count]
        taken: list[int] = []
        for socket in enough[:1] or free:
            wanted = count - len(taken)
            taken += socket[:wanted]
            del socket[:wanted]
        if len(taken) < count:
            raise ValueError(f"{node} has {len(taken)} cores, but {count} were placed on it")
        return tuple(taken)

    def release(self, node: str, cores: Sequence[int]) -> None:
        free = self._free[self.names.index(node)]
        for core in cores:
            free[core // self._per_socket].append(core)
        for socket in free:
            socket.sort()

    def place_ranks(self, node: str, cores: Sequence[int]) -> WorkerRanks:
        """Return the placement of a worker's ranks on these cores: one on each."""
        if self._pinned:
            counted = Counter(core // self._per_socket for core in cores)
            sockets: dict[int, float] = dict(counted)
        else:
            sockets = {socket: len(cores) / self._n_sockets for socket in range(self._n_sockets)}
        return WorkerRanks(node=self.names.index(node), sockets=tuple(sorted(sockets.items())), pinned=self._pinned)
