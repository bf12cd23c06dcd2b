"""The laws of layouts: what holds of the rows of each, and how rows that break it are mended."""
