"""A server keeps nothing between calls: requirement 13, section 7.6."""

from dataclasses import replace

from destination import HISTORY, LIVE, Place, definition, gives, serving
from tables_as_text import instant

from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

COLUMNS = "id v n synced start end active"


def test_a_new_server_for_every_call_changes_nothing(spark, store, schema, tmp_path):
    """13: Each call goes to a new server, and the last calls go to others again. The tables equal those of
    one server."""
    live = Place(None, store, schema, definition("live", LIVE))
    more = live.having(f"{LIVE} more")
    history = Place(None, store, schema, definition("history", HISTORY))
    create = [
        (live, lambda place: place.sender.create(schema, place.table)),
        (history, lambda place: place.sender.create(schema, place.table)),
    ]
    change = [
        (live, lambda place: place.write(replace="id v n synced \n 1 a 1 T1 \n 2 b 2 T3 \n 3 c 3 T5")),
        (more, lambda place: place.sender.alter(schema, place.table)),
        (more, lambda place: place.write(update="id more \n 2 new", delete="id \n 3")),
        (more, lambda place: place.truncate(instant("T3"))),
        (more, lambda place: place.write(replace="id v n synced more \n 1 again - T6 -")),
        (history, lambda place: place.write(replace=f"{COLUMNS} \n 1 a 1 T1 T1 TMAX true")),
        (history, lambda place: place.write(replace=f"{COLUMNS} \n 2 b 2 T1 T1 TMAX true")),
        (
            history,
            lambda place: place.write(
                earliest="id start \n 1 T3", update=f"{COLUMNS} \n 1 x . T7 T3 TMAX true"
            ),
        ),
        (history, lambda place: place.write(delete="id end \n 2 T4")),
    ]
    for place, call in create + change + change[-2:]:
        with serving({"backstory": IcebergStore(spark)}) as where:
            call(replace(place, sender=Sender.to(where, tmp_path)))
    assert gives("id v n synced more \n 1 again - T6 - \n 2 b 2 T3 new") == more.rows()
    expected = f"""
        {COLUMNS}
        1  a  1  T1  T1  T3-1  false
        1  x  1  T7  T3  TMAX  true
        2  b  2  T1  T1  T4    false
    """
    assert gives(expected) == history.rows()
