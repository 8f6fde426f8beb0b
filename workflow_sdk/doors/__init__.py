"""What operators hold in their hands: `Client` and `Runtime`, with all that they can do."""
