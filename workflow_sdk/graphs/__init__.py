"""Graphs: workflows that are written down as steps and the arcs between them."""
