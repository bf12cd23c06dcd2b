"""The session of one commit over Spark Connect: its notes, and the errors that mean a conflict."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from backstory.model.table import TableName
from backstory.spark.session_settings import OUR_SETTINGS
from backstory.stores.connect.store import ConnectStore
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import quote, text_literal
from backstory.stores.iceberg.store import IcebergTable
from backstory.stores.refusals import conflict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The prefix of a session's settings that become properties of its commits.
NOTE: Final = "spark.sql.iceberg.snapshot-property."
# Texts in Spark's errors that mean that another writer was faster.
_CONFLICTS: Final = (
    "CommitFailedException",
    "ValidationException",
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "is not an ancestor of",
    "branch does not exist",
    "already exists",
    "Ref does not exist",
)


def fast_forward(
    store: ConnectStore, session: "SparkSession", table: TableName, onto: str, branch: str
) -> None:
    """Move `onto` to the newest commit of `branch`, which must contain the newest commit of `onto`."""
    name = text_literal(f"{quote(table.schema)}.{quote(table.name)}")
    session.sql(f"CALL {quote(store.catalog)}.system.fast_forward({name}, '{onto}', '{branch}')").collect()


def require_unchanged(store: ConnectStore, session: "SparkSession", table: IcebergTable) -> None:
    """Raise TryAgain if the table has changed since it was loaded."""
    name = table.shape.table
    session.sql(f"REFRESH TABLE {replace(store, branch=None).sql_name(name)}")
    if store.metadata_location(name, session) != table.metadata:
        raise conflict(name)


@contextmanager
def commit_session(
    store: ConnectStore, table: TableName, notes: Mapping[str, str]
) -> Iterator["SparkSession"]:
    """A session for one commit. Its settings contain the commit's notes, which no other commit gets.

    Raises TryAgain if another writer was faster.
    """
    session: Any = store.spark.cloneSession()  # type: ignore[attr-defined]
    try:
        session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")  # all rows, not partitions
        for name, value in OUR_SETTINGS.items():
            session.conf.set(name, value)
        for name, value in notes.items():
            session.conf.set(NOTE + name, value)
        with translate_faults(table):
            try:
                yield session
            except PySparkException as fault:
                if any(text in str(fault) for text in _CONFLICTS):
                    raise conflict(table) from fault
                raise
    finally:
        with suppress(PySparkException):
            session.client.release_session()
