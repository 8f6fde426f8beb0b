"""What an instance remembers and how it is written down. Pure: nothing here waits, reads a clock or throws dice."""
