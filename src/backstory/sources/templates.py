"""Templates in a manifest's texts: `${{ env.A || env.B || 'text' || 123 }}` (section 1.1), in short `${A}`.

They are filled when a source is asked, and a manifest is stored with them unfilled. No error shows a
text of a template or a value, for either may be a secret; names of variables are shown.

What may be shown of an address: never user, password, query, nor what a template was filled with.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from backstory.errors import UsageError

OPEN: Final = "${{"
CLOSE: Final = "}}"

# One alternative of a template; what stands between two is `||`.
TOKEN: Final = re.compile(
    r"""\s*(?:
        env\.(?P<variable>[A-Za-z_][A-Za-z0-9_]*)
      | '(?P<single>[^']*)'
      | "(?P<double>[^"]*)"
      | (?P<number>-?\d+(?:\.\d+)?)
    )\s*""",
    re.VERBOSE,
)
# A variable alone, as in backstory.toml.
SHORT: Final = re.compile(r"\$\{(?P<variable>[A-Za-z_][A-Za-z0-9_]*)\}")
START: Final = re.compile(rf"{re.escape(OPEN)}|{SHORT.pattern}")

FORM: Final = (
    "Write ${{ env.NAME || 'text' || 123 }}: variables, quoted texts and numbers, with || between them."
)

Tokens = tuple[re.Match[str], ...]


def fill(text: str, environment: Mapping[str, str]) -> str:
    """The text with each template replaced by the first of its alternatives that there is.

    UsageError `template-invalid-pattern` for anything that is no template, and
    `template-value-not-found` if none of its variables is set.
    """
    return "".join(part if isinstance(part, str) else _value(part, environment)[0] for part in _parts(text))


def secrets_of(text: str, environment: Mapping[str, str]) -> frozenset[str]:
    """The values that filling the text takes from the environment, for logs to mask them."""
    found = (_value(part, environment) for part in _parts(text) if not isinstance(part, str))
    return frozenset(value for value, secret in found if secret and value)


def check(text: str) -> None:
    """UsageError `template-invalid-pattern` if a template of the text is none; no variable is looked up."""
    for _ in _parts(text):
        pass


def with_variables_as(mark: str, text: str) -> str:
    """The text with a mark for each template that says nothing by itself, else what it says by itself."""

    def replaced(tokens: Tokens) -> str:
        texts = (each for token in tokens for name, each in token.groupdict().items() if name != "variable")
        return next(filter(None, texts), mark)

    return "".join(part if isinstance(part, str) else replaced(part) for part in _parts(text))


def _parts(text: str) -> Iterator[str | Tokens]:
    """What stands between templates, as it is, and the alternatives of each template."""
    place = 0
    while start := START.search(text, place):
        yield text[place : start.start()]
        tokens, place = ((start,), start.end()) if start["variable"] else _template(text, start.start())
        yield tokens
    yield text[place:]


def _template(text: str, start: int) -> tuple[Tokens, int]:
    """The alternatives of the template that starts here, and where it ends."""
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
    """The first value there is, and whether it is the environment's."""
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


_TEMPLATE = re.compile(r"\$\{\{.*?\}\}|\$\{\w+\}")
_VARIABLE = re.compile(r"(?:env\.|^\$\{)(\w+)")
# Templates stand in the address as characters of Unicode's private area while it is taken apart.
_FIRST = 0xE000
_SHOWN = re.compile(r"([A-Za-z\ue000-\uf8ff][A-Za-z0-9+.\ue000-\uf8ff-]*://)?(?:[^/?#]*@)?([^?#]*)")
# Shorter texts hide nothing, and taking them out would only make a message unreadable.
_SHORTEST = 4


def without_secrets(url: str) -> str:
    """The address as messages have it: no user, password and query; of templates only the variables."""
    templates = _TEMPLATE.findall(url)
    marks = iter(range(_FIRST, _FIRST + len(templates)))
    found = _SHOWN.match(_TEMPLATE.sub(lambda _: chr(next(marks)), url))
    assert found is not None  # each of its parts may be missing
    text = f"{found[1] or ''}{found[2]}"
    for number, template in enumerate(templates, _FIRST):
        text = text.replace(chr(number), _variables(template))
    return text


def has_templates(text: str) -> bool:
    """Whether the text has templates, whose values must not be shown."""
    return _TEMPLATE.search(text) is not None


def private_parts(url: str, headers: Iterable[str]) -> set[str]:
    """User, password and query of an address, and the values of headers; ValueError if it is no address."""
    parts = urlsplit(url)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    secrets = {user, password, parts.query, *(value for _, value in parse_qsl(parts.query))}
    for value in headers:
        secrets |= {value, *value.split()}
    return secrets


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text on one line, `***` in place of each secret, without characters that steer a terminal."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    long = {secret for secret in secrets if len(secret) >= _SHORTEST}
    for secret in sorted(long | {unquote(secret) for secret in long}, key=len, reverse=True):
        line = line.replace(secret, "***")
    return line


def _variables(template: str) -> str:
    """The template without its texts, which may be secrets as well."""
    names = [f"env.{name}" for name in _VARIABLE.findall(template)]
    return f"${{{{ {' || '.join(names) or '…'} }}}}"
