"""The explorer, which shows the results of the reading commands as read-only pages in a browser."""
