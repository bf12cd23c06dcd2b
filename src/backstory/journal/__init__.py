"""The record of what was done to a dataset: chain of blocks, log, hashes of rows, and their verification."""
