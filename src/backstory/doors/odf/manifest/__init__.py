"""The manifest of a dataset: the document, its validation and its JSON Schema in one."""
