"""Issued certificates as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scanflow_client.formatting.text_table import Table

if TYPE_CHECKING:
    from scanflow.pki import IssuedCertificate


def format_certificates(issued: Sequence[IssuedCertificate]) -> Table:
    now = datetime.now(UTC)
    rows = [
        (
            record.name,
            record.describe_state(now),
            f"{record.expires:%Y-%m-%d}",
            ", ".join(record.hosts) or "a client's",
            record.serial,
        )
        for record in issued
    ]
    return Table(("certificate", "state", "valid until", "hosts", "serial"), rows)
