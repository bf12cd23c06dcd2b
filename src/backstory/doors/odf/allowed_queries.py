"""What the queries of a manifest may do: compute on their batch and on the datasets that they name, no more.

A manifest may come from anywhere: Spark looks at its queries when they were read here (section 1.7, O12).
"""

import re

from backstory.doors.odf.dataset import Dataset
from backstory.doors.odf.manifest.events import NAME
from backstory.doors.odf.manifest.read import Sql
from backstory.doors.odf.source_rules import INPUT
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.spark.parsed_queries import tables_read
from backstory.stores.iceberg.store import Store, require_here


def steps(sql: Sql) -> list[tuple[str | None, str]]:
    """The queries of a step, each with its alias."""
    return [(None, sql.query)] if sql.query is not None else [(s.alias, s.query) for s in sql.queries or ()]


def refuse_forbidden_queries(store: Store, name: TableName, dataset: Dataset) -> None:
    """Raise UsageError, with file and line, for a query of a manifest that does more; nothing is run.

    `name` is the dataset's table, whose schema holds the datasets that a query may name.
    """
    for path, source in dataset.sources():
        sql, given = source.preprocess, {INPUT}
        for number, (alias, query) in enumerate(steps(sql) if sql else ()):
            place = ("queries", number, "query") if sql and sql.queries else ("query",)
            try:
                others_read(store, name.schema, query, frozenset(given))
            except UsageError as wrong:
                where = dataset.place((*path, "preprocess", *place))
                raise UsageError(wrong.code, f"{where}: {wrong.message}", wrong.remedy) from None
            given |= {alias} if alias is not None else set()


def others_read(store: Store, namespace: str, query: str, given: frozenset[str]) -> bool:
    """Whether a query reads other datasets beside what it is given.

    Raises UsageError if it reads anything else, or does more than compute.
    """
    found = tables_read(store.spark, query, given)
    for table in sorted(found):
        *folders, last = table
        is_name = re.fullmatch(NAME, last) is not None and "/" not in last
        if folders not in ([namespace], [store.catalog, namespace]) or not is_name:
            raise UsageError(
                "forbidden-query",
                f"The query reads {'.'.join(table)}, which is neither an earlier step nor a dataset.",
                f"It may read `{INPUT}`, and datasets as {store.catalog}.{namespace}.`name`.",
            )
        require_here(store, TableName(namespace, last))
    return bool(found)
