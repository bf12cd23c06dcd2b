"""What was sent to a table last, so that the same pair of copies is the same batch when it is sent again.

A batch is known by its files' names and bytes, and these hold the time of the change. So a pair keeps its
time, and the secret from which names and keys of its files follow, until another one was taken after it.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import file_digest, sha256
from pathlib import Path

from backstory.model.instant import iso, parse_instant

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class SentBatch:
    """The time of a batch, and what names, keys and IVs of its files follow from.

    `taken` says whether it is the one that the destination took last, as far as is known here.
    """

    time: datetime
    secret: bytes
    taken: bool = False


@dataclass(frozen=True, slots=True)
class SentBatches:
    """The batches of a table that may be sent again, in a file: the last that was taken, and tries since."""

    place: Path

    @classmethod
    def of(cls, *table: str) -> "SentBatches":
        """Those of a table, which is named by its destination, schema and name."""
        name = sha256(json.dumps(table).encode()).hexdigest()
        return cls(Path.home() / ".cache" / "backstory" / "sent" / f"{name}.json")

    def batch(self, pair: str, time: datetime | None = None) -> SentBatch:
        """The batch of a pair: as it was sent before, else a new one of this time, or of now."""
        known = self._read()
        if pair not in known:
            new = SentBatch(time or datetime.now(UTC), os.urandom(SECRET_BYTES))
            self._write({**known, pair: new})
            return new
        return known[pair]

    def mark_taken(self, pair: str) -> None:
        """Note that the destination has this pair: others sent from now on are new."""
        known = self._read()
        self._write({pair: replace(known[pair], taken=True)} if pair in known else {})

    def _read(self) -> dict[str, SentBatch]:
        try:
            told = json.loads(self.place.read_text("utf-8"))
            return {
                pair: SentBatch(parse_instant(time), bytes.fromhex(secret), *taken)
                for pair, (time, secret, *taken) in told.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, batches: dict[str, SentBatch]) -> None:
        """Where nothing can be kept each batch is a new one."""
        told = {pair: [iso(each.time), each.secret.hex(), each.taken] for pair, each in batches.items()}
        fresh = self.place.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self.place.parent.mkdir(0o700, parents=True, exist_ok=True)
            fresh.touch(0o600)
            fresh.write_text(json.dumps(told), "utf-8")
            fresh.replace(self.place)


def pair_of(files: Iterable[Path], *about: object) -> str:
    """What tells a pair of copies, sent in a certain way, from others: their content, not their names."""
    found = []
    for path in files:
        with path.open("rb") as file:
            found.append(file_digest(file, "sha256").hexdigest())
    return sha256(json.dumps([*found, *map(str, about)]).encode()).hexdigest()
