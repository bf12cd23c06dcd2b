"""What is told of an erasure: never the key, and no path or name that holds it (native.md V89)."""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, unquote

from backstory.model.receipt import Receipt

TELLING: Final = 4


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Receipt):
    """What was forgotten, without the key; or what would be, where it was not `applied`.

    Its `status` is no-record where no file holds the record: it never was there, or was forgotten before.
    `rows` are those of the newest snapshot by role, `left` is 0 or names what could not be looked at or
    deleted. The `path` of a file is the SHA-256 of the salt and its location, for folders and files may be
    named after the key. `consumers` are the cursors that read the record: their copies still have it. `also`
    are the certificates of the tables that belong to this one.
    """

    table: str
    key_digest: str
    salt: str
    forgotten_at: str | None = None
    status: Literal["no-record", "planned", "forgotten"] = "no-record"
    applied: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)
    files_rewritten: int = 0
    files_deleted: Sequence[Mapping[str, Any]] = ()
    snapshots_expired: Sequence[int] = ()
    metadata_deleted: Sequence[Mapping[str, Any]] = ()
    statistics_deleted: Sequence[Mapping[str, Any]] = ()
    searched: Mapping[str, int] = field(default_factory=dict)
    left: int | Sequence[str] = 0
    consumers: Sequence[str] = ()
    also: Sequence[Mapping[str, Any]] = ()
    sha256: str = ""

    def seal(self) -> "Certificate":
        """The same with the digest of all that it says."""
        told = {name: value for name, value in self.to_dict().items() if name != "sha256"}
        text = json.dumps(told, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return replace(self, sha256=sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class ForgottenRecord:
    """The key of a record, and a salt by which it is told without being named.

    `folders` are the names by which layouts part their rows, which never tell a key.
    """

    key: Mapping[str, object]
    folders: Collection[str] = ()
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def digest(self) -> str:
        """The digest of its key."""
        return self.digest_of(json.dumps([str(each) for each in self.key.values()]))

    def digest_of(self, text: str) -> str:
        """The salted digest of a text."""
        return sha256((self.salt + text).encode()).hexdigest()

    @property
    def mark(self) -> str:
        """What stands in a table until its erasure is finished."""
        return f"{self.salt} {self.digest}"

    def is_marked(self, mark: str) -> bool:
        """Whether a mark is of this record."""
        salt, _, digest = mark.partition(" ")
        return bool(mark) and replace(self, salt=salt).digest == digest

    def occurs_in(self, text: str) -> bool:
        """Whether a text has a value of the key; one of a few letters stands in texts by chance."""
        return any(len(each) >= TELLING and each in text for each in map(str, self.key.values()))

    def show(self, text: str) -> str:
        """A name or location to be shown; its digest, where it may tell the key.

        Folders that are named after values of a user's partition may be named after the key in another
        spelling.
        """
        spelt = {how(str(each)) for each in self.key.values() for how in (str, quote, quote_plus)}
        texts = (text.casefold(), unquote(text).casefold())
        words = {each for one in texts for each in re.split(r"[^\w.+-]+|\.(?=[a-z]+$)", one)}
        long = {each.casefold() for each in spelt if len(each) >= TELLING}
        own = "|".join(map(re.escape, self.folders))
        foreign = re.sub(rf"(?<=/)(?:{own})=[^/=]*(?=/)", "", text) if own else text
        told = "=" in foreign or bool({each.casefold() for each in spelt} & words)
        told = told or any(each in one for each in long for one in texts)
        return f"(SHA-256 with the salt {self.salt}) {self.digest_of(text)}" if told else text

    def without_paths(self, files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Files that were deleted, by the digests of their locations."""
        return [{**each, "path": self.digest_of(str(each["path"]))} for each in files]
