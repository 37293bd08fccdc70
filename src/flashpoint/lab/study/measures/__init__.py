"""Measurements of studies: functions from options to a flat mapping of numbers."""
