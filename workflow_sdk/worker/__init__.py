"""Many instances in one process: finding them, running them, and giving them turns."""
