"""Each request uses the target in its own configuration: requirement 14, section 7.6."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from destination import LIVE, Place, column_types, definition, gives, serving
from lakes import lake
from memory_store.store import MemoryStore
from tables_as_text import instant

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.testing.sender import Sender

CONFIGURATIONS = [
    {},
    {"catalog": "lake"},
    {"catalog": "lake", "schema_prefix": "pre_"},
    {"catalog": "backstory", "schema_prefix": "pre_"},
]


@pytest.fixture
def places(request, store, tables_on, schema, tmp_path):
    """The table `t` of one schema in two catalogs, with and without a prefix, selected by requests."""
    other = MemoryStore("lake")
    if tables_on == "iceberg":
        other = lake(request.getfixturevalue("spark"), "lake_of_configurations", tmp_path)
    stores = {"backstory": store, "lake": other}
    with serving(stores) as address:
        sender = Sender.to(address, tmp_path)
        yield [
            Place(
                replace(sender, configuration=configuration),
                stores[configuration.get("catalog", "backstory")],
                schema,
                definition("t", LIVE),
            )
            for configuration in CONFIGURATIONS
        ]


def read(place):
    """The rows in the catalog, in a schema whose name has the prefix."""
    return replace(place, schema=place.sender.configuration.get("schema_prefix", "") + place.schema).rows()


def truncate(place, before):
    """A truncate with the configuration of the place."""
    request = sdk.TruncateRequest(
        configuration=place.sender.configuration,
        schema_name=place.schema,
        table_name=place.table.name,
        synced_column="_fivetran_synced",
    )
    request.utc_delete_before.FromDatetime(before)
    return place.sender.stub.Truncate(request)


@pytest.mark.tables_on("memory", "iceberg")
def test_each_configuration_has_its_own_tables(places, schema):
    """14: One table name in four configurations is four tables, for alternating and for concurrent calls."""
    for number, place in enumerate(places):
        assert place.sender.describe(schema, "t") is None
        place.sender.create(schema, place.having(f"{LIVE} only{number}").table)
    for number, place in enumerate(places):
        place.write(replace=f"id v n synced \n 0 early {number} T{number} \n 1 late {number} T3")
        assert list(column_types(place.sender.describe(schema, "t")))[-1] == f"only{number}"

    def rest(numbered):
        number, place = numbered
        place.write(update=f"id v \n 0 new{number}")
        place.alter(f"{LIVE} more{number}", drop_columns=True)
        truncate(place, instant("T2"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rest, enumerate(places)))
    for number, place in enumerate(places):
        expected = f"id v n synced more{number} \n 1 late {number} T3 -"
        if number >= 2:
            expected += f"\n 0 new{number} {number} T{number} -"
        assert gives(expected) == read(place)
