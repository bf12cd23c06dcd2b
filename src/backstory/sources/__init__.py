"""Sources of bytes: HTTP, FTP, files and globs, and databases."""
