"""Users' conditions, and the reach of a delta (sections 1.1, 3.7; A20)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from historizing import dataset, document, model_of

from backstory.dialects import DuckDB, Postgres, Spark, SqlServer
from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import delta_cutoff, hist_scope, increment_scope
from backstory.errors import UsageError

NOW = datetime(2024, 3, 31, 12, 30, tzinfo=UTC)
FILTER = "ModifiedDate >= {{DELTA_CUTOFF}} AND is_deleted_flag = 0"


def model(filter_=FILTER, scope=None, columns=None, policies=None, environment="dev"):
    """A merged base whose stage has other column names."""
    made = dataset("id:BIGINT* upd_date:TIMESTAMP is_deleted_flag:INTEGER name", input="stage.customer")
    made["target_columns"][1]["input"] = "ModifiedDate"
    for extra in columns or []:
        made["target_columns"].append(extra)
    days = {"environment": "dev", "increment_interval_length": 30, "increment_interval_unit": "day"}
    source = {
        "name": "crm.customer",
        "incremental": True,
        "increment_filter": filter_,
        "increment_policies": [days] if policies is None else policies,
    }
    made |= {"incremental_source": "crm.customer", "incremental_strategy": "merge"}
    made["historization"] = {"snapshot": "partial", "delete_scope": scope} if scope else {}
    return model_of(document(made, source_datasets=[source], environment=environment))


def scoped(filter_=FILTER, dialect=DuckDB, alias="t", **more):
    resolved = model(filter_, **more)
    return increment_scope(resolved, resolved.target_datasets[0], dialect(), alias)


def test_a20_names_of_the_stage_become_columns_of_the_base():
    """A20: Each identifier is matched by letters and digits, and quoted. The cutoff is unchanged."""
    condition = scoped()
    assert condition == 't."upd_date" >= {{ DELTA_CUTOFF }} AND t."is_deleted_flag" = 0'


@pytest.mark.parametrize(
    ("dialect", "condition"),
    [
        (Postgres, 'b."upd_date" >= {{ DELTA_CUTOFF }} AND b."name" <> \'x\''),
        (Spark, "b.`upd_date` >= {{ DELTA_CUTOFF }} AND b.`name` <> 'x'"),
        (SqlServer, "b.[upd_date] >= {{ DELTA_CUTOFF }} AND b.[name] <> 'x'"),
    ],
)
def test_the_condition_is_written_in_each_dialect(dialect, condition):
    """3.7: A parsed condition is written with the dialect's quotes."""
    assert scoped("ModifiedDate >= {{DELTA_CUTOFF}} AND NAME <> 'x'", dialect, "b") == condition


@pytest.mark.parametrize(
    ("filter_", "condition"),
    [
        ('col("ModifiedDate") >= {{ DELTA_CUTOFF }}', 't."upd_date" >= {{ DELTA_CUTOFF }}'),
        ("col('modified_date') IS NULL", 't."upd_date" IS NULL'),
        ("ModifiedDate >= '{{DELTA_CUTOFF}}'", 't."upd_date" >= {{ DELTA_CUTOFF }}'),
        ("x.MODIFIED_DATE >= {{DELTA_CUTOFF}}", 't."upd_date" >= {{ DELTA_CUTOFF }}'),
        ("name = 'ModifiedDate'", "t.\"name\" = 'ModifiedDate'"),
        ("name = 'it''s -- not; a (comment'", "t.\"name\" = 'it''s -- not; a (comment'"),
        ("name = 'a' -- AND 1 = 0", "t.\"name\" = 'a'"),
        ("id = 1 OR id IN (2, 3)", 't."id" = 1 OR t."id" IN (2, 3)'),
    ],
)
def test_supported_filters_are_translated(filter_, condition):
    """3.7: `col("X")`, qualified names and a quoted cutoff are allowed. Texts are data, and comments are
    removed."""
    assert scoped(filter_) == condition


@pytest.mark.parametrize(
    "text",
    [
        "id = 1; DROP TABLE rawcore.rc_c",
        "DROP TABLE rawcore.rc_c",
        "1 = 1) OR (1 = 1",
        "id IN (SELECT id FROM rawcore.rc_c)",
        "id = (SELECT 1)",
        "(VALUES (1))",
        "EXISTS (SELECT 1)",
        "id = 1 UNION SELECT 1",
        "SELECT 1",
        "FROM rawcore.rc_c",
        "count(id) > 1",
        "row_number() OVER () = 1",
        "id := 1",
        "id = 1, name = 'x'",
        "id = ?",
        "*",
        "COMMIT",
        "id = 'a' {{ pepper }}",
        "name = '{{ load_run_id }}'",
        "name = 'x",
        "",
        "nowhere = 1",
        "col('nowhere') = 1",
    ],
)
def test_filters_with_more_than_a_condition_are_refused(text):
    """3.7: Statements, subqueries, other placeholders and unknown names are never part of the SQL."""
    resolved = model(scope=text or " ")
    hist = sync_hist(resolved.target_datasets[0], None, NOW)
    with pytest.raises(UsageError) as refused:
        hist_scope(resolved.target_datasets[0], hist, DuckDB())
    assert refused.value.code == "wrong-model"
    if text:
        with pytest.raises(UsageError):
            scoped(text)


def test_a_name_that_matches_two_columns_is_refused():
    """E1: A name that matches both `up_d` and `upd` is refused, unless it is exact."""
    columns = [
        {"target_column_name": name, "datatype": "STRING", "input": name.upper()} for name in ("up_d", "upd")
    ]
    with pytest.raises(UsageError, match="several of its columns"):
        scoped("Up_D = 'x'", columns=columns)
    assert scoped("UP_D = 'x' AND UPD = 'y'", columns=columns) == "t.\"up_d\" = 'x' AND t.\"upd\" = 'y'"


def test_a_delete_scope_uses_the_columns_of_the_history():
    """3.7: A scope is a boolean expression over the history's columns, including technical ones, with alias
    `h`."""
    resolved = model(scope="name = 'x' AND version_state = 'new'")
    hist = sync_hist(resolved.target_datasets[0], None, NOW)
    condition = hist_scope(resolved.target_datasets[0], hist, DuckDB())
    assert condition == "h.\"name\" = 'x' AND h.\"version_state\" = 'new'"


def test_a_dataset_without_a_filter_has_no_scope():
    """3.7: Without a filter, a source or a scope, there is no condition."""
    assert scoped(None) is None
    plain = model_of(document(dataset()))
    (base,) = plain.target_datasets
    assert increment_scope(plain, base, DuckDB(), "t") is None
    assert hist_scope(base, sync_hist(base, None, NOW), DuckDB()) is None
    assert delta_cutoff(plain, base, NOW) is None


@pytest.mark.parametrize(
    ("length", "unit", "now", "cutoff"),
    [
        (30, "day", NOW, datetime(2024, 3, 1, 12, 30, tzinfo=UTC)),
        (1, "month", NOW, datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
        (1, "month", NOW.replace(year=2023), datetime(2023, 2, 28, 12, 30, tzinfo=UTC)),
        (4, "month", NOW, datetime(2023, 11, 30, 12, 30, tzinfo=UTC)),
        (3, "month", NOW, datetime(2023, 12, 31, 12, 30, tzinfo=UTC)),
        (15, "month", NOW.replace(day=15), datetime(2022, 12, 15, 12, 30, tzinfo=UTC)),
        (12, "month", NOW.replace(month=1, day=1), datetime(2023, 1, 1, 12, 30, tzinfo=UTC)),
        (1, "year", datetime(2024, 2, 29, tzinfo=UTC), datetime(2023, 2, 28, tzinfo=UTC)),
        (4, "year", datetime(2024, 2, 29, tzinfo=UTC), datetime(2020, 2, 29, tzinfo=UTC)),
        (2023, "year", NOW, datetime(1, 3, 31, 12, 30, tzinfo=UTC)),
        (2024, "year", NOW, datetime.min.replace(tzinfo=UTC)),
        (10_000_000, "day", NOW, datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_the_cutoff_is_the_run_s_instant_minus_the_interval(length, unit, now, cutoff):
    """1.1: Days are exact, and months and years follow the calendar. A missing day becomes the month's last."""
    policy = {
        "environment": "dev",
        "increment_interval_length": length,
        "increment_interval_unit": unit,
    }
    resolved = model(policies=[policy])
    assert delta_cutoff(resolved, resolved.target_datasets[0], now) == cutoff


def test_the_active_policy_of_the_environment_is_used():
    """1.1: Policies of other environments and inactive policies are ignored."""
    policies = [
        {
            "environment": env,
            "increment_interval_length": days,
            "increment_interval_unit": "day",
            "active": on,
        }
        for env, days, on in (("prod", 1, True), ("dev", 2, False), ("dev", 3, True), ("dev", 4, True))
    ]
    resolved = model(policies=policies)
    assert delta_cutoff(resolved, resolved.target_datasets[0], NOW) == NOW - timedelta(days=3)
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    assert delta_cutoff(resolved, resolved.target_datasets[0], east) == NOW - timedelta(days=3)
