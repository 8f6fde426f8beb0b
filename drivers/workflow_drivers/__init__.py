"""The stores that come with workflow_sdk: one module per URL scheme, found through the entry-point group."""
