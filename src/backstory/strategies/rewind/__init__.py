"""Take back what a table of versions learnt after a time; that it was believed stays known."""
