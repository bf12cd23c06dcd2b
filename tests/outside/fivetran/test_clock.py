"""A clock that is set back: Iceberg accepts no commit older than the newest one."""

import json
import re
from pathlib import Path

from destination import LIVE, Place, gives, status

from backstory.engine import deliver

HOUR = 3_600_000
INSTANTS = re.compile(r'("(?:last-updated-ms|timestamp-ms)"\s*:\s*)(\d+)')


def an_hour_later(metadata: Path) -> None:
    """Change a table's metadata as if a clock were an hour fast."""
    later = INSTANTS.sub(lambda found: f"{found[1]}{int(found[2]) + HOUR}", metadata.read_text())
    assert json.loads(later)
    metadata.write_text(later)
    metadata.with_name(f".{metadata.name}.crc").unlink(missing_ok=True)


def test_a_clock_set_back_is_named_as_the_cause(sender, store, schema, monkeypatch):
    """7.7: The error is not a conflict with another writer, and nothing is written."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T1")
    before = place.metadata()
    an_hour_later(Path(before.removeprefix("file:")))
    file = place.files("id v n synced \n 2 b 2 T1")
    monkeypatch.setattr(deliver, "ATTEMPTS", 2)
    error = status(lambda files: place.reply(replace=files), file)
    assert error.code().name == "UNAVAILABLE"
    assert "clock" in error.details()
    assert "another writer" not in error.details()
    assert place.metadata() == before
    assert gives("id v n synced \n 1 a 1 T1") == place.rows()
