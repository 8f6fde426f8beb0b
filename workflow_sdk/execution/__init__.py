"""Running one instance, one go: load, replay, branches, parking, unwinding, settling."""
