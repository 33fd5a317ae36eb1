"""One server's load on its share of a GPU: a convolutional network, asked again and again. Run as a step.

It begins when all of its cut are ready, so that they compute at the same time, and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]  # where there is a GPU

    task, servers = os.environ["SCANFLOW_TASK"], int(os.environ["LOAD_SERVERS"])
    folder = Path(os.environ["LOAD_READY"])
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    model = build_model(torch).cuda().half().to(memory_format=torch.channels_last).eval()
    results = {}
    for batch in map(int, os.environ["LOAD_BATCHES"].split()):
        inputs = torch.randn(batch, 3, 224, 224, device="cuda").half().to(memory_format=torch.channels_last)
        _ask(torch, model, inputs, seconds=2.0)
        _wait_for_all(folder / str(batch), task, servers)
        results[batch] = _ask(torch, model, inputs, seconds=float(os.environ["LOAD_SECONDS"]))
        _wait_for_all(folder / f"{batch}-ended", task, servers)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    print(json.dumps({"processors": processors, "torch_bytes": torch.cuda.max_memory_reserved(), "batches": results}))


def build_model(torch: Any) -> Any:
    """Return a network of 16 residual blocks, about ResNet-50's size, without a package for it."""

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            inner = width // 4
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(width, inner, 1),
                torch.nn.ReLU(),
                torch.nn.Conv2d(inner, inner, 3, padding=1),
                torch.nn.ReLU(),
                torch.nn.Conv2d(inner, width, 1),
            )

        def forward(self, values: Any) -> Any:
            return torch.relu(values + self.layers(values))

    layers: list[Any] = [torch.nn.Conv2d(3, 256, 7, stride=4, padding=3)]
    width = 256
    for blocks in (3, 4, 6, 3):
        layers += [Block(width) for _ in range(blocks)]
        if width < 2048:
            layers.append(torch.nn.Conv2d(width, 2 * width, 1, stride=2))
            width *= 2
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2048, 1000))


def _ask(torch: Any, model: Any, inputs: Any, *, seconds: float) -> dict[str, Any]:
    """Predict until the time is up, one batch after the other; return how many, and how long each took."""
    latencies = []
    with torch.inference_mode():
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            model(inputs).float().cpu()  # an answer leaves the device
            latencies.append(time.perf_counter() - began)
    latencies.sort()
    return {
        "per_s": len(latencies) * len(inputs) / sum(latencies),
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
    }


def _wait_for_all(folder: Path, task: str, servers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / task).touch()
    while len(list(folder.iterdir())) < servers:
        time.sleep(0.002)  # noqa: TID251 - a step's program, and no test


if __name__ == "__main__":
    main()
