"""The thesis' spelling of the API (listings 5.1, 5.2 and 6.1), with what its notebooks add, over the same models and
deployer.

Unsupported features raise errors that name the replacement; failures are exceptions, never ``False``.
"""

from __future__ import annotations

from scanflow_client.thesis.awaited import Awaited
from scanflow_client.thesis.deployer_client import ScanflowDeployClient, ScanflowDeployerClient
from scanflow_client.thesis.describing import ScanflowClient

__all__ = ["Awaited", "ScanflowClient", "ScanflowDeployClient", "ScanflowDeployerClient"]
