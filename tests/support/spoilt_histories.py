"""Histories with many records, each of which breaks one law or none: one table for all laws."""

from backstory.engine.deliver import commit_change
from backstory.formats.memory import Memory
from backstory.model.change import Change, Note
from backstory.model.versions_layout import RECORDED
from backstory.stores.iceberg.store import existing
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_rows import TableReader
from backstory.upkeep.checking import check, check_small

# Each key names its fault. Keys that begin with `good` are healthy.
VERSIONS = """
k          v  from  to   recorded  role  ended_at  end_before  kind    current
good1      a  T10   T20  T1        -     T2        -           -       false
good1      b  T20   -    T2        -     -         -           -       true
good-gap   a  T10   T20  T1        -     T2        -           -       false
good-gap   b  T30   -    T3        -     -         -           -       true
good-late  a  T10   T15  T2        -     T3        T20         -       false
good-late  c  T15   T20  T3        -     -         -           -       false
good-late  b  T20   -    T2        -     -         -           -       true
good-late  a  T10   T10  T1        past  T2        -           -       false
-          v  T10   -    T1        -     -         -           -       true
start      a  T10   -    T1        -     -         -           -       true
start      b  T10   -    T1        -     -         -           -       true
empty      a  T10   T10  T1        -     -         -           -       false
empty      a  T20   -    T1        -     -         -           -       true
back       a  T20   T10  T1        -     -         -           -       false
overlap    a  T10   T30  T1        -     -         -           -       false
overlap    b  T20   T40  T1        -     -         -           -       false
open       a  T10   -    T1        -     -         -           -       true
open       b  T20   -    T2        -     -         -           -       true
marker     a  T10   -    T1        -     -         -           -       false
role       a  T10   T20  T1        fact  -         -           upsert  false
recorded   a  T10   T20  T3        -     T2        -           -       false
future     a  T10   -    T9        -     -         -           -       true
belief     a  T10   T20  T1        -     T3        -           -       false
belief     b  T20   -    T2        -     -         -           -       true
facts      -  T20   T20  T1        fact  -         -           delete  false
facts      -  T20   T20  T2        fact  -         -           upsert  false
"""

FIVETRAN = """
k      v  start  end     active  synced
good   a  T10    T20-1   false   T1
good   b  T20    TMAX    true    T2
touch  a  T10    T20     false   T1
touch  b  T20    TMAX    true    T2
brief  a  T10    T10-0.75  false   T1
brief  b  T10+0.25  TMAX  true   T2
-      v  T10    TMAX    true    T1
start  a  T10    TMAX    true    T1
start  b  T10    TMAX    true    T2
back   a  T20    T10     false   T1
over   a  T10    T30     false   T1
over   b  T20    T40     false   T1
mark1  a  T10    TMAX    false   T1
mark2  a  T10    T20     true    T1
mark3  a  T10    -       -       T1
"""

HIST = """
k        v  began  ended  state    hash
good     a  T10    T20    changed  erased
gone     a  T10    T20    deleted  erased
own      a  T10    T20    CLOSED   erased
own      b  T20    -      OPEN     erased
over     a  T10    T30    changed  erased
over     b  T20    -      changed  erased
opens    a  T10    -      new      erased
opens    b  T20    -      new      erased
state1   a  T10    T20    new      erased
state2   a  T10    -      deleted  erased
state3   a  T10    -      -        erased
hash1    a  T10    -      new      -
hash2    a  T10    -      new      ABC
"""

LIVE = """
k     v  synced
good  a  T1
-     a  T1
twice a  T1
twice b  T1
"""


def checked_twice(store, table):
    """The results of `check`, with Spark and from the table's files, which are the same."""
    results = check(store, table)
    assert of_files(store, table) == results
    return results


def of_files(store, table, ask=check_small):
    """The answer from the table's files."""
    catalog = EmbeddedCatalog(store.folder)
    with Memory(1 << 30).lease() as lease:
        return ask(TableReader(catalog.describe(table), catalog, lease))


def broken(records):
    """The keys by law, without the note about commits by SQL."""
    return {each["law"]: set(each["keys"]) for each in records if each["status"] != "noted"}


def recorded(store, table, at):
    """A commit that records its time."""
    note = Note("native", "", {RECORDED: at})
    stored_table = existing(store, table)
    commit_change(store, stored_table, Change(snapshot=True), note)
