"""How much an operation costs. `make bench` prints one line of JSON per scenario and store."""
