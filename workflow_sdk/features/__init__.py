"""Features that stand beside the engine: each whole in one room. The engine imports none of them."""
