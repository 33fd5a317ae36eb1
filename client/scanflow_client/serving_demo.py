"""The second half of the demo: the trained model as a service, asked for a thousand handwritten digits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.backends.records import RunRecord
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.deployer import Deployer
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.granted import this_machine
from scanflow_client.service_words import shape_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SERVICE", "Served", "deploy_demo", "question_all", "served_lines"]

SERVICE = "serve"
PICTURES = 1000
CALLERS = 4
INSTANCES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How the service did."""

    record: ServiceRecord
    """With the instances' cores as read back from the kernel."""

    sent: int
    different: int
    """How many of the pictures were different ones."""

    right: int
    latencies_s: tuple[float, ...]
    """Of each request, in ascending order."""

    by_instance: dict[str, int]

    def latency_s(self, share: float) -> float:
        """Return the latency that this share of the requests did not exceed."""
        return self.latencies_s[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))]

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "service": self.record.model_dump(mode="json"),
            "sent": self.sent,
            "different": self.different,
            "accuracy": self.right / self.sent,
            "p50_s": self.latency_s(0.5),
            "p99_s": self.latency_s(0.99),
            "by_instance": self.by_instance,
        }


def deploy_demo(deployer: Deployer, app: Application, source: Path, observe: ServiceObserver) -> ServiceRecord:
    """Serve the champion with two instances, each on a core of its own; with one where there is one core."""
    instances = min(INSTANCES, this_machine().cores)
    return deployer.deploy(app, SERVICE, instances=instances, source=source, observe=observe)


def question_all(
    deployer: Deployer, run: RunRecord, *, advance: Callable[[int], object] = lambda _count: None
) -> Served:
    """Send the pictures that the training has never seen, one a request, and return how well they were read.

    ``advance`` is told of each request that was answered.
    """
    from scanflow.transport import Predictions

    x, y, different = _held_out(Path(run.folder) / "outputs" / "load-data")
    url = deployer.service(SERVICE).url

    def ask(caller: int) -> list[tuple[bool, float, str]]:
        answers = []
        with Predictions(url, name=SERVICE) as client:
            for picture, label in zip(x[caller::CALLERS], y[caller::CALLERS], strict=True):
                began = time.perf_counter()
                answer = client.infer(SERVICE, picture[None])
                took = time.perf_counter() - began
                (scores,) = answer.outputs.values()
                answers.append((int(scores.argmax()) == int(label), took, answer.instance or "?"))
                advance(1)
        return answers

    with ThreadPoolExecutor(CALLERS) as callers:
        answers = [answer for some in callers.map(ask, range(CALLERS)) for answer in some]
    return Served(
        record=deployer.service(SERVICE),
        sent=len(answers),
        different=different,
        right=sum(right for right, _, _ in answers),
        latencies_s=tuple(sorted(took for _, took, _ in answers)),
        by_instance=dict(sorted(Counter(instance for _, _, instance in answers).items())),
    )


def served_lines(served: Served) -> list[str]:
    """Return what a person wants to know of it."""
    repeated = f" ({served.different} were held out, so they were sent again)" if served.different < served.sent else ""
    cores = ", ".join(
        f"instance {one.instance} on {'any core' if not one.cpus else f'core {format_cpus(one.cpus)}'}"
        for one in served.record.instances
    )
    shares = ", ".join(f"{instance}: {count:,}" for instance, count in served.by_instance.items())
    p50, p99 = (1000 * served.latency_s(share) for share in (0.5, 0.99))
    return [
        "",
        f"  served     {shape_words(served.record.shape)}; read back: {cores}",
        f"  accuracy   {served.right / served.sent:.4f} on {served.sent:,} pictures, one a request{repeated}",
        f"  latency    p50 {p50:.1f} ms, p99 {p99:.1f} ms, with {CALLERS} callers; answered by instance {shares}",
    ]


def _held_out(folder: Path) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Return pictures and labels that were kept from the training, a thousand of them, and how many are different."""
    import numpy as np

    x, y = np.load(folder / "x_test.npy"), np.load(folder / "y_test.npy")
    order = np.arange(PICTURES) % len(x)
    return x[order], y[order], min(PICTURES, len(x))
