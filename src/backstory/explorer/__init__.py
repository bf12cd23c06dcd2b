"""The explorer: the answers of the reading commands as pages in a browser, read only."""
