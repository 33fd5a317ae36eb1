"""The files of the Helm chart, as far as they can be checked without Helm, which golden/test_helm_chart.py renders."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.grammar import CHECKOUT

CHART = CHECKOUT / "deploy/helm/scanflow"


@pytest.mark.parametrize("name", ["Chart.yaml", "values.yaml", "values.schema.json"])
def test_a_file_of_the_chart_can_be_parsed(name: str) -> None:
    text = (CHART / name).read_text()
    assert json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
