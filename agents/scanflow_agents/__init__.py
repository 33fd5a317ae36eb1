"""The host of one agent: it keeps schedules, calls sensors, and proposes what their strategies want."""
