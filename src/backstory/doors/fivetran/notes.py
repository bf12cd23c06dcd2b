"""What the commits of schema changes and migrations say of themselves."""

import hashlib

from backstory.model.change import Note

DOOR = "fivetran"


def note(act: str, *about: object) -> Note:
    """The note of an act, told apart from other acts by what it is about."""
    told = " ".join(map(str, (act, *about)))
    return Note(DOOR, hashlib.sha256(told.encode()).hexdigest())
