"""Delivered bytes become typed Arrow rows: streamed, and never decrypted on disk."""
