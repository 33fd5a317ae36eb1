"""Actuators: functions whose results become calls to other agents."""
