"""The record of all changes to a dataset: chain of blocks, log, hashes of rows, and their verification."""
