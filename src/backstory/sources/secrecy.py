"""What may be shown of an address: never user, password, query, nor what a template was filled with."""

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

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


def templated(text: str) -> bool:
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


def redacted(text: str, secrets: Iterable[str]) -> str:
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
