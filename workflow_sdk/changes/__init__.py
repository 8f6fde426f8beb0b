"""Everything that is written, as changes: pure decisions that read rows and write rows."""
