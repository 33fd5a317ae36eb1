"""The thesis' spelling (listings 5.1, 5.2 and 6.1), and what notebooks of that project add, over the same models and
deployer.

Differences, all of them errors rather than silence: what this version does not have is refused by name, with what to
write; failures are exceptions, never ``False``.
"""

from __future__ import annotations

from scanflow_client.thesis.awaited import Awaited
from scanflow_client.thesis.deployer import ScanflowDeployClient, ScanflowDeployerClient
from scanflow_client.thesis.describing import ScanflowClient

__all__ = ["Awaited", "ScanflowClient", "ScanflowDeployClient", "ScanflowDeployerClient"]
