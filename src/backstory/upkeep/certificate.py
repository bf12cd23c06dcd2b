"""The certificate of an erasure, which never contains the key or a path with the key (native.md V89)."""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, unquote

from backstory.model.receipt import Receipt

# Shorter values of keys occur in strings by chance.
SHORTEST_VALUE: Final = 4


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Receipt):
    """The result of an erasure, or its plan if `applied` is false.

    The certificate does not contain the key. `status` is no-record if no file contains the record, because
    the record never existed or was erased before. `rows` has the numbers of the record's rows in the newest
    snapshot, by role. `left` is 0, or lists everything that could not be searched or deleted. The `path` of a
    file is the SHA-256 of the salt and its location, because folders and files may be named after the key.
    `consumers` are the cursors that have read the record. The consumers' copies still contain it. `also` has
    the certificates of the tables that belong to this one.
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
        """The certificate with the digest of all its other fields."""
        fields = {name: value for name, value in self.to_dict().items() if name != "sha256"}
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return replace(self, sha256=sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class ForgottenRecord:
    """The key of a record, and a salt. The certificate only contains the salted digest of the key.

    `folders` are the partition names of layouts, which never contain a key.
    """

    key: Mapping[str, object]
    folders: Collection[str] = ()
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def digest(self) -> str:
        """The salted digest of the key."""
        return self.digest_of(json.dumps([str(value) for value in self.key.values()]))

    def digest_of(self, text: str) -> str:
        """The salted digest of a string."""
        return sha256((self.salt + text).encode()).hexdigest()

    @property
    def mark(self) -> str:
        """The mark that is in a table's properties until the erasure is finished."""
        return f"{self.salt} {self.digest}"

    def is_marked(self, mark: str) -> bool:
        """Whether a mark belongs to this record."""
        salt, _, digest = mark.partition(" ")
        return bool(mark) and replace(self, salt=salt).digest == digest

    def occurs_in(self, text: str) -> bool:
        """Whether a string contains a value of the key that is too long to occur by chance."""
        return any(len(value) >= SHORTEST_VALUE and value in text for value in map(str, self.key.values()))

    def show(self, text: str) -> str:
        """A name or location in a form that may be shown.

        If the name may contain the key, its digest is shown instead.

        The folders of a user's own partitions may contain the key in another spelling.
        """
        spelt = {how(str(value)) for value in self.key.values() for how in (str, quote, quote_plus)}
        texts = (text.casefold(), unquote(text).casefold())
        words = {word for spelling in texts for word in re.split(r"[^\w.+-]+|\.(?=[a-z]+$)", spelling)}
        long = {spelling.casefold() for spelling in spelt if len(spelling) >= SHORTEST_VALUE}
        own = "|".join(map(re.escape, self.folders))
        foreign = re.sub(rf"(?<=/)(?:{own})=[^/=]*(?=/)", "", text) if own else text
        may_contain_key = "=" in foreign or bool({spelling.casefold() for spelling in spelt} & words)
        may_contain_key = may_contain_key or any(spelling in whole for spelling in long for whole in texts)
        return f"(SHA-256 with the salt {self.salt}) {self.digest_of(text)}" if may_contain_key else text

    def without_paths(self, files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The deleted files, with the digests of their locations."""
        return [{**file, "path": self.digest_of(str(file["path"]))} for file in files]
