"""One run of one instance: load, run, park, flush, release, undo."""
