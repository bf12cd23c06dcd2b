"""O1: The manifests of the published page on merge strategies run as written, and produce its tables.

`...` is filled in: an address, a CSV with a header, and column names in lower case.
"""

from datetime import UTC, datetime
from functools import partial
from textwrap import dedent

import pytest
import web
from datasets import Dataset, counts, e, lines
from depth import deep

LEDGER = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: root
  metadata:
    - kind: setPollingSource
      fetch:
        kind: url
        url: {url}
      read:
        kind: csv
        header: true
        inferSchema: {inferred}
      preprocess:
        kind: sql
        engine: datafusion
        query: |
          SELECT Year AS year, Country AS country, City AS city, Population AS population FROM input
      merge:
        kind: ledger
        primaryKey:
          - country
          - city
    - kind: setVocab
      eventTimeColumn: year
"""
SNAPSHOT = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: root
  metadata:
    - kind: setPollingSource
      fetch:
        kind: url
        url: {url}
        eventTime:
          kind: fromMetadata
      read:
        kind: csv
        header: true
        inferSchema: true
      preprocess:
        kind: sql
        engine: spark
        query: |
          select Country as country, City as city, Population as population from input
      merge:
        kind: snapshot
        primaryKey:
          - country
          - city
"""
CENSUS_2019 = b"Year,Country,City,Population\n2019,CA,Vancouver,2581000\n2019,US,Seattle,3433000\n"
CENSUS_2020 = CENSUS_2019 + b"2020,CA,Vancouver,2606000\n"
SLIPPED = CENSUS_2020.removeprefix(b"Year,")
NOW = b"Country,City,Population\nCA,Vancouver,2581000\nUS,Seattle,3433000\n"
THEN = NOW.replace(b"2581000", b"2606000")


@pytest.fixture
def site():
    with web.serving() as served:
        yield served


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, "", namespace="odf_page")


def modified(number: int) -> str:
    return e(number).strftime("%a, %d %b %Y %H:%M:%S GMT")


def plays(*bodies: bytes) -> list[web.Play]:
    """The same address with different contents over time."""
    return [web.Play(body, modified=modified(number)) for number, body in enumerate(bodies, 1)]


def started(dataset, text: str, url: str, **words: str) -> Dataset:
    life = dataset()
    life.add(dedent(text).format(name=life.name, url=url, **words))
    return life


@pytest.mark.parametrize("inferred", ["false", "true"][: deep(2, 1)])  # a year is a number or a text (O5)
def test_the_published_ledger(dataset, site, inferred):  # O1, O4, O5, O6, O7, O11, R29
    """Old events are recognised. The new event of a known city has another time, and arrives at `s2`."""
    url = site.play("/cities.csv", *plays(CENSUS_2019, CENSUS_2020))
    life = started(dataset, LEDGER, url, inferred=inferred)
    assert life.pull().counts == counts(appended=2)
    second = life.pull()
    assert (second.counts, second.offsets) == (counts(appended=1, unchanged=2), (2, 2))
    assert second.watermark == datetime(2020, 1, 1, tzinfo=UTC)
    assert list(life.rows()[0]) == ["offset", "system_time", "year", "country", "city", "population"]
    assert life.log() == lines("""
        0 s1 2019 CA Vancouver 2581000
        1 s1 2019 US Seattle   3433000
        2 s2 2020 CA Vancouver 2606000
    """)
    with life.unchanged():
        assert life.pull().status == "up-to-date"
    assert life.commits() == 2
    assert site.statuses() == [200, 200, 304]


def test_the_printed_second_file_is_refused(dataset, site):  # O23
    """Its header lacks `Year`. Nothing is lost, and the corrected file is ingested."""
    url = site.play("/cities.csv", *plays(CENSUS_2019, SLIPPED, CENSUS_2020))
    life = started(dataset, LEDGER, url, inferred="true")
    life.pull()
    with life.unchanged():
        error = life.error(life.pull(), "broken-csv")
    assert "line 2" in error.message
    assert "4 fields where the header has 3" in error.message
    assert life.pull(refetch=True).offsets == (2, 2)
    assert life.log(2) == ["2 s3 2020 CA Vancouver 2606000"]


def test_the_published_snapshot(dataset, site):  # O1, O2, O3, R73
    """Event times are from the caching headers. A change is one row with the new values."""
    url = site.play("/cities.csv", *plays(NOW, THEN, THEN, THEN.partition(b"US")[0]))
    life = started(dataset, SNAPSHOT, url)
    assert life.pull().counts == counts(appended=2)
    second = life.pull()
    assert (second.counts, second.offsets) == (counts(corrected=1, unchanged=1), (2, 2))
    table = """
        0 s1 e1 I CA Vancouver 2581000
        1 s1 e1 I US Seattle   3433000
        2 s2 e2 U CA Vancouver 2606000
    """
    names = ["offset", "system_time", "event_time", "observed", "country", "city", "population"]
    assert list(life.rows()[0]) == names
    assert life.log() == lines(table)
    # A new state of the source without news makes a commit without rows (R23). A removed record is a `D`.
    assert life.pull().status == "up-to-date"
    assert life.pull().counts == counts(retracted=1, unchanged=1)
    assert life.log(3) == ["3 s4 e4 D US Seattle 3433000"]


def test_the_published_append(dataset, site):  # O1, O23
    """With `merge: {kind: append}`, the ledger's manifest appends every row again, in order."""
    ledger, _, vocab = LEDGER.partition("    - kind: setVocab")
    text = f"{ledger.partition('      merge:')[0]}      merge:\n        kind: append\n    - kind: setVocab{vocab}"
    url = site.play("/cities.csv", *plays(CENSUS_2019, CENSUS_2020))
    life = started(dataset, text, url, inferred="true")
    life.pull()
    assert life.pull().counts == counts(appended=3)
    assert life.log() == lines("""
        0 s1 2019 CA Vancouver 2581000
        1 s1 2019 US Seattle   3433000
        2 s2 2019 CA Vancouver 2581000
        3 s2 2019 US Seattle   3433000
        4 s2 2020 CA Vancouver 2606000
    """)
