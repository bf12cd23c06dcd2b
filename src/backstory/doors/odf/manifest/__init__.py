"""Manifests of datasets: the document with its validation and JSON Schema, its rules, and its dataset."""
