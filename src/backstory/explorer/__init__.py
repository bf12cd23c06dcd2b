"""The explorer: the results of the reading commands as pages in a browser, read-only."""
