"""What a page asks, in the words of the reading commands: an address is a question, and a question a link."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from backstory.errors import UsageError
from backstory.model.instant import optional_instant
from backstory.model.json_text import cell_text
from backstory.model.keys import key_of_words

# Rows of a page, and at most.
ROWS, MOST_ROWS = 50, 500
# The words of an address that Python or a view calls otherwise.
_CALLED: Final = {"from": "first"}
_SPELLED: Final = {field: word for word, field in _CALLED.items()}


@dataclass(frozen=True, slots=True)
class Question:
    """A view, the table, and what is asked of it; what is left out is empty, as texts of the address."""

    view: str
    table: str = ""
    key: tuple[str, ...] = ()
    column: str = ""
    at: str = ""
    known_at: str = ""
    axis: str = ""
    first: str = ""
    to: str = ""
    change: str = ""
    where: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    step: str = ""
    limit: str = ""

    @property
    def rows(self) -> int:
        """How many rows the page has; UsageError for what is no number of rows."""
        if not self.limit:
            return ROWS
        if not self.limit.isdecimal() or not 0 < int(self.limit[:9]) <= MOST_ROWS:
            raise UsageError(
                "bad-option", f"A page has 1 to {MOST_ROWS} rows.", "Change `limit` in the address."
            )
        return int(self.limit)

    @property
    def offset(self) -> int:
        """How many rows stand before the page, where it is not a key that the page begins behind."""
        return int(self.after[0][:18]) if self.after and self.after[0].isdecimal() else 0

    @property
    def instant(self) -> datetime | None:
        """The time that is asked about; UsageError for a text that is none."""
        return optional_instant(self.at or None)

    @property
    def time_of_knowledge(self) -> datetime | None:
        """The time at which it was known; UsageError for a text that is none."""
        return optional_instant(self.known_at or None)

    @property
    def values_by_column(self) -> dict[str, str]:
        """The values that columns must have, by their names."""
        pairs = [each.partition("=") for each in self.where]
        if wrong := [name for name, equals, _ in pairs if not equals]:
            raise UsageError("bad-option", f"{wrong[0]!r} names no value.", "Write it as column=value.")
        return {name: value for name, _, value in pairs}

    def record(self, names: Iterable[str]) -> Any:
        """The key of the record, of a table whose key has these columns."""
        if not self.key:
            raise UsageError("no-key", "No key is given.", "Choose a record of the table.")
        return key_of_words(list(names), self.key)

    def address(self, ending: str = "") -> str:
        """The link to the page, or with an ending to its twin."""
        told: list[tuple[str, str]] = []
        for each in fields(self):
            value = getattr(self, each.name)
            word = _SPELLED.get(each.name, each.name)
            if each.name != "view" and value:
                told += [(word, one) for one in ([value] if isinstance(value, str) else value)]
        path = "/" if self.view == "tables" and not ending else f"/{self.view}{ending}"
        return path + (f"?{urlencode(told)}" if told else "")

    def but(self, **changes: Any) -> "Question":
        """The same question with other words."""
        return replace(self, **changes)


_MANY: Final = {each.name for each in fields(Question) if "tuple" in str(each.type)}
_WORDS: Final = {each.name for each in fields(Question)} - {"view"}


def question_of(view: str, words: Iterable[tuple[str, str]]) -> Question:
    """The question of an address; UsageError for a word that means nothing, or stands twice."""
    given: dict[str, Any] = {}
    for word, value in words:
        name = _CALLED.get(word, word)
        if name not in _WORDS or (name in given and name not in _MANY):
            what = "stands twice in the address" if name in given else "means nothing here"
            raise UsageError("bad-option", f"{word!r} {what}.", "Follow a link of the page.")
        if value:
            given[name] = (*given.get(name, ()), value) if name in _MANY else value
    return Question(view, **given)


def key_words(key: Mapping[str, object]) -> tuple[str, ...]:
    """The words that name a record, of the values of its key by their columns; none for NULL in a key."""
    if None in key.values():
        return ()
    texts = {name: cell_text(value, "") for name, value in key.items()}
    (text,) = texts.values() if len(texts) == 1 else ("",)
    if text and "=" not in text:
        return (text,)
    return tuple(f"{name}={text}" for name, text in texts.items())


def key_parts(names: Sequence[str], text: str) -> tuple[str, ...]:
    """The words of a key in one text, as `check` lists it; none for what is read as no key."""
    if len(names) == 1:
        return () if text == "NULL" else (f"{names[0]}={text}",)
    form = " ".join(f"{re.escape(name)}=(.*)" for name in names)
    found = re.fullmatch(form, text, re.DOTALL)
    if not names or found is None or "NULL" in found.groups():
        return ()
    return tuple(f"{name}={value}" for name, value in zip(names, found.groups(), strict=True))
