"""What a workflow can do: one module per verb, on top of the scope it is done in."""
