"""Statements of a load, with placeholders instead of whole literals (sections 3.5 and 5.2)."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from backstory.errors import Failed


class Statement(NamedTuple):
    """One statement of a load, and the name of its step in the log."""

    step: str
    sql: str


LOAD_TIMESTAMP = "{{ load_timestamp }}"
LOAD_TIMESTAMP_TEXT = "{{ load_timestamp_text }}"
LOAD_RUN_ID = "{{ load_run_id }}"
PEPPER = "{{ pepper }}"
_BETWEEN_BRACES = re.compile(r"(?<=\{)(?=\{)")
PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder with its SQL, in one pass, so that values remain data.

    Raises Failed for a placeholder without a value, because the statement must then not run.
    """

    def value(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if name not in values:
            raise Failed(
                "unresolved-placeholder", f"A statement has the placeholder {name}, but no value for it."
            )
        return values[name]

    return PLACEHOLDER.sub(value, template)


def without_placeholders(text: str) -> list[str]:
    """Split the string between adjacent braces, so that no part contains a placeholder."""
    return _BETWEEN_BRACES.split(text)
