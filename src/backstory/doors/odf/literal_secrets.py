"""Secrets in a manifest: whoever may read the table, or its files, can read them too.

They belong into the environment, from where a template takes them when the source is asked (section 1.1).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from backstory.documents import DocumentPath
from backstory.sources.templates import with_variables_as

# What a variable fills in; no address has this letter.
FILLED: Final = "\ue000"
# Names of headers, of an address's parameters and of variables; `accessToken` is two words.
NAMES: Final = re.compile(
    r"(?:^|[-_.])(?:\w*(?:token|secret|password|passwd|passphrase|api[-_]?key)|authorization|cookie"
    r"|credentials?|pwd|sig|signature)$",
    re.IGNORECASE,
)
KEY: Final = re.compile(
    r"(?:^|[-_.])(?:access|account|auth|client|private|secret|subscription)[-_.]?key$", re.IGNORECASE
)
# A parameter that is just called `key` may be a word, or the name of a series: `key=D.USD.EUR.SP00.A`.
BARE_KEY: Final = re.compile(r"(?=.*\d)[\w-]+")
# Where the next page of an answer begins.
PAGES: Final = re.compile(r"(?:page|next|continuation|sync|cursor)[-_.]?token$", re.IGNORECASE)
CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Shorter ones are rather words than keys: `key=population`; shorter users rather names than tokens.
SHORTEST_KEY, SHORTEST_USER = 16, 8
# Users of FTP who give no password, or any; the key that public interfaces give to everybody.
ANYBODY: Final = {"anonymous", "ftp"}
EVERYBODY: Final = {"demo_key", "demo-key"}


def literal_secrets(document: Mapping[str, Any]) -> Iterator[tuple[DocumentPath, str]]:
    """Where a manifest has a secret as it is, and what it is, also in events that newer ones replace."""
    for number, event in enumerate(document["content"]["metadata"]):
        for place, what in _of_fetch(event.get("fetch") or {}):
            yield ("content", "metadata", number, "fetch", *place), what


def _of_fetch(fetch: Mapping[str, Any]) -> Iterator[tuple[DocumentPath, str]]:
    for key in ("url", "nodeUrl"):
        yield from (((key,), what) for what in secrets_in_address(fetch.get(key) or ""))
    for key in ("headers", "env"):
        for number, each in enumerate(fetch.get(key) or ()):
            if _is_secret(each["name"], each.get("value") or ""):
                yield (key, number, "value"), f"the value of {each['name']}"
    if _is_literal(with_variables_as(FILLED, fetch.get("password") or "")):
        yield ("password",), "a password"


def secrets_in_address(url: str) -> Iterator[str]:
    """What an address has of secrets as they are, in words."""
    try:
        parts = urlsplit(with_variables_as(FILLED, url))
    except ValueError:
        return  # it is no address, and is refused when it is asked
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if password:
        if _is_literal(password) and user.lower() not in ANYBODY:
            yield "a password"
    elif len(user) >= SHORTEST_USER and _is_literal(user) and parts.scheme.startswith("http"):
        yield "a user without a password, which is a token"
    for name, value in parse_qsl(parts.query):
        if _is_secret(name, value):
            yield f"the value of {name}"


def _is_secret(name: str, value: str) -> bool:
    name, text = CAMEL.sub("-", name), with_variables_as(FILLED, value)
    if PAGES.search(name) or text.lower() in EVERYBODY:
        return False
    long = len(text) >= SHORTEST_KEY
    named = NAMES.search(name) or (long and KEY.search(name))
    bare = long and name.lower() == "key" and BARE_KEY.fullmatch(text)
    return bool(named or bare) and _is_literal(text)


def _is_literal(text: str) -> bool:
    """Whether a text says all by itself; `Bearer ${TOKEN}` does not."""
    return bool(text) and FILLED not in text
