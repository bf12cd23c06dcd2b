"""Files become rows: each format read exactly, or refused by file, line and column."""
