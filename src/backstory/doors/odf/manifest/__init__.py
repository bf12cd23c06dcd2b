"""Manifests: the document with its validation and JSON Schema, its rules, and the resulting dataset."""
