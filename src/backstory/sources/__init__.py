"""Where bytes come from: HTTP, FTP, files and globs."""
