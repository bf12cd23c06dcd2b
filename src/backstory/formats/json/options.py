"""How a JSON file is laid out (section 1.6)."""

from dataclasses import dataclass, field

from backstory.formats.values.texts import TextForms


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """An array of objects, or one a line.

    Attributes:
        lines: whether a row stands on a line of its own.
        geo: whether rows are the features of GeoJSON.
        sub_path: the dotted path to the array; None: the root, or the features.
        encoding: Python's name of the text's encoding.
        forms: how numbers, dates and times are written.
        strict: whether keys that nobody declares are refused.
        keeps: whether a column beside another one says which rows do not have it (V138).
    """

    lines: bool = False
    geo: bool = False
    sub_path: str | None = None
    encoding: str = "utf-8"
    forms: TextForms = field(default_factory=TextForms)
    strict: bool = False
    keeps: bool = False
