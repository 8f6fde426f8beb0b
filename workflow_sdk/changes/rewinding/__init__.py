"""Having part of a history happen again."""
