"""A REST catalog, by a server of its own: what it does not look at must not be lost."""

from collections.abc import Iterator

import pytest
from destination import serving
from rest_catalog import serving_rest
from store_contract import check

from backstory.settings import Settings
from backstory.spark.session import properties
from backstory.stores.iceberg.store import Store
from backstory.testing.sender.client import Sender

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def rest(spark, tmp_path_factory) -> Iterator[Store]:
    """A store whose catalog a REST server keeps."""
    with serving_rest(tmp_path_factory.mktemp("rest")) as catalog:
        settings = Settings(tmp_path_factory.mktemp("near"), {"rest": catalog})
        for name, value in properties(settings).items():
            if name.startswith("spark.sql.catalog.rest"):
                spark.conf.set(name, value)
        yield Store(spark, "rest")


@pytest.fixture
def sender(rest, tmp_path) -> Iterator[Sender]:
    with serving({"rest": rest}) as address:
        yield Sender.to(address, tmp_path)


def test_a_store_on_a_rest_catalog_does_what_any_does(rest, sender):
    """Tables are made, written, read, evolved, hidden by vectors and rewritten there."""
    check(sender, rest, "contract")
