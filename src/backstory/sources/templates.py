"""Templates in a manifest: `${{ env.A || env.B || 'text' || 123 }}` (section 1.1), or `${A}` for short.

They are filled when a source is fetched; manifests are stored with unfilled templates. Literals and values of
templates may be secrets, so errors show only the names of variables. Addresses are shown without user,
password, query and values of templates.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from backstory.errors import UsageError

OPEN: Final = "${{"
CLOSE: Final = "}}"

# One alternative of a template; alternatives are separated by `||`.
TOKEN: Final = re.compile(
    r"""\s*(?:
        env\.(?P<variable>[A-Za-z_][A-Za-z0-9_]*)
      | '(?P<single>[^']*)'
      | "(?P<double>[^"]*)"
      | (?P<number>-?\d+(?:\.\d+)?)
    )\s*""",
    re.VERBOSE,
)
# The short form, as in backstory.toml.
SHORT: Final = re.compile(r"\$\{(?P<variable>[A-Za-z_][A-Za-z0-9_]*)\}")
START: Final = re.compile(rf"{re.escape(OPEN)}|{SHORT.pattern}")

FORM: Final = (
    "Write ${{ env.NAME || 'text' || 123 }}: variables, quoted texts and numbers, with || between them."
)

Tokens = tuple[re.Match[str], ...]

_TEMPLATE = re.compile(r"\$\{\{.*?\}\}|\$\{\w+\}")
_VARIABLE = re.compile(r"(?:env\.|^\$\{)(\w+)")
# While an address is parsed, its templates are replaced by characters of Unicode's private use area.
_FIRST = 0xE000
_SHOWN = re.compile(r"([A-Za-z\ue000-\uf8ff][A-Za-z0-9+.\ue000-\uf8ff-]*://)?(?:[^/?#]*@)?([^?#]*)")
# Shorter strings are not masked: masking them would make messages unreadable.
_SHORTEST = 4


def fill(text: str, environment: Mapping[str, str]) -> str:
    """The string with each template replaced by its first alternative that has a value.

    Raises UsageError `template-invalid-pattern` for a malformed template, and `template-value-not-found` if
    none of its variables is set.
    """
    return "".join(part if isinstance(part, str) else _value(part, environment)[0] for part in _parts(text))


def secrets_of(text: str, environment: Mapping[str, str]) -> frozenset[str]:
    """The values from the environment that fill the string's templates. Logs mask these values."""
    values = (_value(part, environment) for part in _parts(text) if not isinstance(part, str))
    return frozenset(value for value, secret in values if secret and value)


def check(text: str) -> None:
    """Raise UsageError `template-invalid-pattern` if a template is malformed. No variable is read."""
    for _ in _parts(text):
        pass


def with_variables_as(mark: str, text: str) -> str:
    """The string with each template replaced by its first literal alternative.

    A template without a literal is replaced by `mark`.
    """

    def literal(tokens: Tokens) -> str:
        texts = (text for token in tokens for name, text in token.groupdict().items() if name != "variable")
        return next(filter(None, texts), mark)

    return "".join(part if isinstance(part, str) else literal(part) for part in _parts(text))


def _parts(text: str) -> Iterator[str | Tokens]:
    """The strings between templates, and the alternatives of each template, in order."""
    place = 0
    while start := START.search(text, place):
        yield text[place : start.start()]
        tokens, place = ((start,), start.end()) if start["variable"] else _template(text, start.start())
        yield tokens
    yield text[place:]


def _template(text: str, start: int) -> tuple[Tokens, int]:
    """The alternatives of the template that begins at `start`, and the index where it ends."""
    tokens: list[re.Match[str]] = []
    place = start + len(OPEN)
    while True:
        token = TOKEN.match(text, place)
        if token is None:
            raise _invalid(place)
        tokens.append(token)
        place = token.end()
        if text.startswith(CLOSE, place):
            return tuple(tokens), place + len(CLOSE)
        if not text.startswith("||", place):
            raise _invalid(place)
        place += len("||")


def _value(tokens: Tokens, environment: Mapping[str, str]) -> tuple[str, bool]:
    """The first alternative that has a value, and whether the value is from the environment."""
    missing = []
    for token in tokens:
        variable = token["variable"]
        if variable is None:
            return next(text for text in token.groups() if text is not None), False
        if variable in environment:
            return environment[variable], True
        missing.append(variable)
    raise UsageError(
        "template-value-not-found",
        f"A template has no value: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
        f"Set {missing[0]}, or add a text to the template: ${{{{ env.{missing[0]} || 'text' }}}}.",
    )


def _invalid(place: int) -> UsageError:
    return UsageError(
        "template-invalid-pattern", f"A template is broken at character {place + 1} of its text.", FORM
    )


def without_secrets(url: str) -> str:
    """The address for messages, without user, password and query. Templates show only their variables."""
    templates = _TEMPLATE.findall(url)
    marks = iter(range(_FIRST, _FIRST + len(templates)))
    shown = _SHOWN.match(_TEMPLATE.sub(lambda _: chr(next(marks)), url))
    assert shown is not None  # every part of the pattern is optional
    text = f"{shown[1] or ''}{shown[2]}"
    for number, template in enumerate(templates, _FIRST):
        text = text.replace(chr(number), _variables(template))
    return text


def has_templates(text: str) -> bool:
    """Whether the string contains templates, whose values must not be shown."""
    return _TEMPLATE.search(text) is not None


def private_parts(url: str, headers: Iterable[str]) -> set[str]:
    """The user, password and query of an address, and the values of headers.

    Raises ValueError for an invalid address.
    """
    parts = urlsplit(url)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    secrets = {user, password, parts.query, *(value for _, value in parse_qsl(parts.query))}
    for value in headers:
        secrets |= {value, *value.split()}
    return secrets


def redact(text: str, secrets: Iterable[str]) -> str:
    """The string on one line, with `***` for each secret and without control characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    masked = {secret for secret in secrets if len(secret) >= _SHORTEST}
    for secret in sorted(masked | {unquote(secret) for secret in masked}, key=len, reverse=True):
        line = line.replace(secret, "***")
    return line


def _variables(template: str) -> str:
    """The template with its variables only, because its literals could be secrets."""
    names = [f"env.{name}" for name in _VARIABLE.findall(template)]
    return f"${{{{ {' || '.join(names) or '…'} }}}}"
