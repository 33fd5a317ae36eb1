"""Sensors: functions that an agent calls at their triggers."""
