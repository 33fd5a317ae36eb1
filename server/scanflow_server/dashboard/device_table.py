"""The table of the machine's GPUs: how full each is, and by whom."""

from __future__ import annotations

from scanflow.backends.device_text import DeviceState
from scanflow.errors import UnavailableError
from scanflow_server.dashboard.dashboard_page import PageRequest
from scanflow_server.dashboard.page_cells import CellRow, CellTable, LinkCell
from scanflow_server.dashboard.subject_links import find_address
from scanflow_server.machine_devices import list_machine_devices


def build_device_table(request: PageRequest) -> CellTable | None:
    """Return a table of the machine's GPUs, or why it cannot be made; None: there are none."""
    try:
        states = list_machine_devices(request.context, request.caller)
    except UnavailableError as error:
        return CellTable((), (), str(error))
    return CellTable.make(map(_build_device_row, states)) if states else None


def _build_device_row(state: DeviceState) -> CellRow:
    links = [LinkCell(text, (claim.holder and find_address(claim.subject, "")) or "") for text, claim in state.holders]
    return {
        "GPU": f"GPU {state.number} {state.name}" if state.is_part else state.name,
        "use": state.used,
        "state": state.note or "granted",
        "granted to": links,
        "on it": state.processes,
    }
