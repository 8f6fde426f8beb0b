"""What one instance remembers, in memory: no input or output."""
