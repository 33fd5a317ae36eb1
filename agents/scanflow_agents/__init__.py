"""The host of one agent: it keeps schedules, calls sensors, and submits the intents of their strategies."""
