"""Reaching instances from outside: sending them messages, and reading what is recorded of them."""
