"""What the plan of a load goes by, out of the model and the tables as they are."""

from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from backstory.doors.historize.collisions import hashed_texts
from backstory.doors.historize.columns import business_keys, foreign_keys, user_columns
from backstory.doors.historize.load import words_of
from backstory.doors.historize.local_stage import GIVEN, computed_here
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.spark_work import SparkWork
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects.duckdb import DuckDB
from backstory.strategies.scd2.terms import LIVE, Flag, LoadTerms


def load_terms(work: SparkWork, newest: datetime | None) -> LoadTerms:
    """The terms of a load, whose history knows no instant after `newest`."""
    load, rules = work.load, work.load.dataset.historization
    columns = user_columns(load.dataset)
    compared = [*columns, *foreign_keys(load.dataset)]
    texts = [each for each in columns if each.datatype is Datatype.STRING and each.max_length]
    dating = rules.effective_dating
    return LoadTerms(
        key=load.dataset.key,
        business=tuple(each.name for each in business_keys(load.dataset)),
        mirrored={each.name: each.input or each.name for each in load.mirrored},
        instant=work.run.instant,
        run=work.run.run_id,
        words=words_of(load.labels),
        compared=(*(each.name for each in compared), ColumnRole.ROW_HASH),
        needed=tuple(each.name for each in columns if not each.nullable),
        lengths={each.name: each.max_length or 0 for each in texts},
        unsure={each.name: each.hash_as.scale if each.hash_as else None for each in hashed_texts(load)},
        collapses=rules.duplicate_keys == "collapse_identical",
        dated=dating.column if dating and dating.late_policy == "reject" else None,
        flag=_flag(work),
        late=newest is not None and newest >= work.run.instant,
        first=work.base is None,
    )


def _flag(work: SparkWork) -> Flag | None:
    """What a row of the base gets that the stage lacks; None where it is deleted."""
    load, soft = work.load, work.load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete" or work.run.skip_base:
        return None
    local = replace(load, dialect=DuckDB())
    column = next(each for each in user_columns(load.dataset) if each.name == soft.column)
    value = local.dialect.cast_expression(local.text(soft.deleted_values[0]), local.dialect.type_of(column))
    flagged = computed_here(work, pa.table({"row": [1]}), {soft.column: value})
    live = computed_here(work, flagged, {LIVE: "TRUE" + local.live(GIVEN)})
    return Flag(soft.column, flagged[soft.column][0].as_py(), soft.deleted_at, live[LIVE][0].as_py())
