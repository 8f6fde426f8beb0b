"""Every row of ours: its key, its fields, and its bytes."""
