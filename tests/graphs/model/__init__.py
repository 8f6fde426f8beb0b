"""A plain model of how graphs run, and what shows that the interpreter agrees with it."""
