"""Graphs: workflows that are described as data."""
