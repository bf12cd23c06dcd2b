"""Views as pages: templates in which every value is text, wherever it came from."""

from collections.abc import Mapping
from datetime import date, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from backstory.explorer.catalog_reader import without_paths
from backstory.explorer.questions import Question, key_parts
from backstory.explorer.views import View
from backstory.model.values import cell_text
from backstory.reading.drawings import STYLE
from backstory.reading.lives import value_text

if TYPE_CHECKING:
    from jinja2 import Environment

# So much of a text is in a cell of a table; the whole is one click away.
CLIP: Final = 120
_KINDS: Final = {"style.css": "text/css", "explore.js": "text/javascript", "icon.svg": "image/svg+xml"}


def page(view: View) -> str:
    """The page of a view, as HTML."""
    return _templates().get_template(f"{view.question.view}.html").render(_context(view))


def evidence(view: View, made: datetime) -> str:
    """A record's life as one file without scripts, which needs nothing else."""
    more = {"made": made, "style": _safe_style()}
    return _templates().get_template("evidence.html").render({**_context(view), **more})


def error_page(question: Question | None, error: Mapping[str, Any]) -> str:
    """The page that says what is wrong, and what to do."""
    return _templates().get_template("error.html").render({"question": question, "error": error})


def asset(name: str) -> tuple[bytes, str] | None:
    """A file that pages need, and its type; None for any other name."""
    if name not in _KINDS:
        return None
    return _asset(name), _KINDS[name]


@cache
def _asset(name: str) -> bytes:
    return (files(__package__) / "static" / name).read_bytes()


def _context(view: View) -> dict[str, Any]:
    return {
        **view.more,
        "view": view,
        "question": view.question,
        "document": view.document,
        "following": view.following,
        "copies": view.copies,
    }


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("backstory.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "cell": cell,
        "clipped": clip,
        "moment": time_text,
        "number": number_text,
        "outcomes": outcomes_text,
        "safe_svg": Markup,  # the picture escapes what it holds
        "without_paths": without_paths,
    }
    found.globals |= {"Question": Question, "key_parts": key_parts}
    return found


def _safe_style() -> Markup:
    """The style of evidence: that of pictures, and that of pages."""
    return Markup(STYLE + _asset("style.css").decode())  # noqa: S704 - both are ours


def cell(value: object) -> str:
    """A value as people read it."""
    return value_text(cell_text(value, "–"))


def clip(value: object) -> str:
    """As much of it as a cell of a table has room for."""
    text = cell(value)
    return text if len(text) <= CLIP else f"{text[:CLIP]}…"


def time_text(value: date | str | None) -> str:
    """An instant in UTC, as short as it can be: a day, a minute or more."""
    if value is None:
        return "–"
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(found, datetime):
        return str(found)
    form = "%Y-%m-%d" if found.time() == found.min.time() else "%Y-%m-%d %H:%M:%S"
    return f"{found:{form}.%f}".rstrip("0") if found.microsecond else f"{found:{form}}"


def number_text(value: int | None) -> str:
    """A number with its thousands apart."""
    return "–" if value is None else f"{value:,}"


def outcomes_text(counts: Mapping[str, int]) -> str:
    """Rows by outcome, those that there are."""
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count) or "nothing"
