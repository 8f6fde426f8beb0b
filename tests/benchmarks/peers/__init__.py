"""The same scenarios, done with what one would pick instead: each program as the peer's own documentation has it."""
