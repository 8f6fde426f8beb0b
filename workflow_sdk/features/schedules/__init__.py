"""Schedules: instances that start at certain times."""
