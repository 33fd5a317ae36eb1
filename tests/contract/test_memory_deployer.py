from __future__ import annotations

import pytest

from scanflow.backends.memory import Memory
from scanflow.deployer import Deployer, EmbeddedDeployer
from scanflow.settings import Settings
from scanflow.testing.deployer import DeployerContract


class TestMemoryDeployer(DeployerContract):
    interrupts = False

    @pytest.fixture
    def deployer(self, settings: Settings) -> Deployer:
        return EmbeddedDeployer(settings, backend=Memory(settings))
