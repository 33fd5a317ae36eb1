"""A service's model on its GPU: the network of ``gpu_load``, for pictures of one grey each, as requests say."""

from __future__ import annotations

from typing import Any


class Network:
    def __init__(self) -> None:
        import torch  # pyright: ignore[reportMissingImports]  # where there is a GPU
        from gpu_load import build_model  # type: ignore[import-not-found]  # beside it, where it is run

        self._torch = torch
        torch.manual_seed(0)
        self._model = build_model(torch).cuda().half().to(memory_format=torch.channels_last).eval()

    def predict(self, rows: Any) -> Any:
        torch = self._torch
        greys = torch.as_tensor(rows, dtype=torch.float16, device="cuda").reshape(-1, 1, 1, 1)
        with torch.inference_mode():
            pictures = greys.expand(-1, 3, 224, 224).contiguous(memory_format=torch.channels_last)
            return self._model(pictures).float().argmax(dim=1).cpu().numpy()
