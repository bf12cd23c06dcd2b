"""Ordinary situations as data: which tools keep the right history, which refuse, which are silently wrong."""
