"""The views as HTML. Templates escape every value."""

from collections.abc import Mapping
from datetime import date, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from backstory.explorer.catalog_reader import without_paths
from backstory.explorer.questions import Question, key_parts
from backstory.explorer.views import View
from backstory.reading.timelines import STYLE, value_text

if TYPE_CHECKING:
    from jinja2 import Environment

# The largest number of characters of a string in a table cell.
CLIP: Final = 120
_KINDS: Final = {"style.css": "text/css", "explore.js": "text/javascript", "icon.svg": "image/svg+xml"}


def page(view: View) -> str:
    """The HTML page of a view."""
    return _templates().get_template(f"{view.question.view}.html").render(_context(view))


def evidence(view: View, made: datetime) -> str:
    """A record's history as a self-contained HTML file without scripts."""
    more = {"made": made, "style": _safe_style()}
    return _templates().get_template("evidence.html").render({**_context(view), **more})


def error_page(question: Question | None, error: Mapping[str, Any]) -> str:
    """The page for an error, with its remedy."""
    return _templates().get_template("error.html").render({"question": question, "error": error})


def asset(name: str) -> tuple[bytes, str] | None:
    """A static file and its media type, or None for any other name."""
    return (_asset(name), _KINDS[name]) if name in _KINDS else None


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
        "snippets": view.snippets,
    }


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("backstory.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": value_text,
        "clip": clip,
        "moment": time_text,
        "number": number_text,
        "outcomes": outcomes_text,
        "safe_svg": Markup,  # the picture escapes its content
        "without_paths": without_paths,
    }
    environment.globals |= {"Question": Question, "key_parts": key_parts}
    return environment


def _safe_style() -> Markup:
    """The style of a saved record, which combines the styles of pictures and pages."""
    return Markup(STYLE + _asset("style.css").decode())  # noqa: S704 - both are ours


def clip(value: object) -> str:
    """A value as a string, shortened to fit a table cell."""
    text = value_text(value)
    return text if len(text) <= CLIP else f"{text[:CLIP]}…"


def time_text(value: date | str | None) -> str:
    """An instant in UTC as a short string: a day, or a time with seconds or microseconds."""
    if value is None:
        return "–"
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:  # a year before 1 or after 9999
        return str(value)
    if not isinstance(time, datetime):
        return str(time)
    form = "%Y-%m-%d" if time.time() == time.min.time() else "%Y-%m-%d %H:%M:%S"
    return f"{time:{form}.%f}".rstrip("0") if time.microsecond else f"{time:{form}}"


def number_text(value: int | None) -> str:
    """A number with thousands separators."""
    return "–" if value is None else f"{value:,}"


def outcomes_text(counts: Mapping[str, int]) -> str:
    """The counts of rows by outcome, without zeros."""
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count) or "nothing"
