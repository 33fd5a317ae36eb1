"""The host of one agent: schedules, sensors, strategies, outbox and journal, and the agent's HTTP API."""
