"""The nouns of the project: frozen dataclasses that need only the standard library."""
