"""A statement of a load, before its placeholders are filled in.

The placeholders of statements, each in place of a whole literal (sections 3.5 and 5.2).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from backstory.errors import Failed


class Statement(NamedTuple):
    """One statement of a load, by the name that the log has for it."""

    step: str
    sql: str


LOAD_TIMESTAMP = "{{ load_timestamp }}"
LOAD_TIMESTAMP_TEXT = "{{ load_timestamp_text }}"
LOAD_RUN_ID = "{{ load_run_id }}"
PEPPER = "{{ pepper }}"
_BETWEEN_BRACES = re.compile(r"(?<=\{)(?=\{)")
PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    """The statement with each placeholder's SQL in its place, in one pass: values stay data.

    Raises Failed for a placeholder without a value: such a statement is never run.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in values:
            raise Failed(
                "unresolved-placeholder",
                f"A statement has the placeholder {name}, but no value for it.",
            )
        return values[name]

    return PLACEHOLDER.sub(value, template)


def without_placeholders(text: str) -> list[str]:
    """The text in parts none of which has two braces together, so that no placeholder is seen in it."""
    return _BETWEEN_BRACES.split(text)
