"""Ordinary situations, as data: who keeps the right history, who refuses, and who is wrong without a word."""
