"""Starting, reaching and looking at instances, without running them."""
