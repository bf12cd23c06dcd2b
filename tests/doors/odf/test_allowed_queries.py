"""Queries of manifests may only compute, and are refused before Spark analyses them."""

from functools import partial

import pytest
from datasets import Dataset
from manifesting import dataset_of, manifest, polling

from backstory.doors.odf.door import pull
from backstory.doors.odf.manifest.events import Sql
from backstory.doors.odf.polling import IngestRequest
from backstory.doors.odf.preprocess import others_read, run_query
from backstory.doors.odf.registry import RegisteredDataset
from backstory.errors import UsageError
from backstory.model.table import TableName

INPUT = frozenset({"input"})
RUNS = "SELECT TRANSFORM(city) USING 'sh -c \"touch %s; cat\"' AS (city STRING) FROM input"

ALLOWED = r"""
select *, date as event_time from input where v between 1 and 2 and s like 'a%' and n not in (1, 2) order by v limit 1
table input
select cast(a as int), b::bigint, try_cast(c as date), -a % 2 div 3, a || b, a is unknown, a is not unknown from input
with x as (select * from input), y as (from x) select count(distinct v) filter (where v > 1) from y group by all
select * from input lateral view explode(split(a, ',')) t as b
select i.*, t.* from input i, lateral explode(i.a) t join range(10) r using (id) natural left join (select 1 as id)
select transform(a, x -> x + 1), filter(a, (x, i) -> i > 1), a[0], m['k'], struct(a, b), j:a.b::int from input
select * except (a) from input pivot (sum(v) as s for k in ('a', 'b'))
select * from input unpivot (v for k in (a, b as x))
select rank() over w, lag(v) ignore nulls over w from input window w as (partition by a order by b rows 1 preceding)
select a, sum(v) from input group by grouping sets ((a), ()) having count(*) > 1 union all select a, v from input
select * from input where exists (select 1 from input i where i.a = input.a) and v = (select max(v) from input)
select extract(year from d), d + interval 1 month, date '2020-01-01', timestampadd(day, 1, t), current_date from input
select trim(both 'x' from a), overlay(a placing 'x' from 1), a ilike any ('a', 'b'), percentile_cont(0.5) within group (order by v) from input
select /*+ broadcast(i) */ from_json(j, 'a int'), parse_url(u, 'HOST'), sha2(a, 256), typeof(a), uuid() from input i
from input |> where a > 1 |> aggregate sum(b) as s group by a |> extend s + 1 as t |> order by s
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r
select * from (values (1, 'x')) as t(a, b) join inline(array(struct(1, 2))) using (a)
select user, version, "reflect('a')" from input
select first(v), any_value(v), last(v) ignore nulls, window.start from input group by window(t, '1 hour')
"""

# A query, and the name in its refusal.
FORBIDDEN = r"""
SELECT TRANSFORM(city) USING 'sh -c id' AS (city STRING) FROM input     | a script transformation
FROM input MAP a USING 'cat' AS b                                       | a script transformation
SELECT value AS city FROM text.`/etc/passwd`                            | text./etc/passwd
SELECT * FROM parquet.`/data/x`                                         | parquet./data/x
SELECT * FROM odf.`../x`                                                | odf.../x
SELECT * FROM backstory.crm.customers                                   | backstory.crm.customers
SELECT * FROM backstory.odf.cities.snapshots                            | backstory.odf.cities.snapshots
SELECT * FROM `input 7`                                                 | input 7
WITH a AS (WITH v AS (SELECT 1) TABLE v) TABLE v                        | v
WITH v AS (SELECT * FROM v) TABLE v                                     | v
SELECT reflect('java.lang.System', 'getenv', 'X') FROM input            | the function reflect
SELECT `Java_Method`('java.lang.System', 'getenv', 'X') FROM input      | the function Java_Method
SELECT try_reflect('java.lang.System', 'getenv', 'X') FROM input        | the function try_reflect
SELECT system.builtin.reflect('java.lang.System', 'x')                  | the function system.builtin.reflect
SELECT 1 FROM input WHERE EXISTS (SELECT reflect('a', 'b'))             | the function reflect
SELECT sum(v) OVER w FROM input WINDOW w AS (ORDER BY reflect('a'))     | the function reflect
SELECT transform(a, x -> reflect('a', x)) FROM input                    | the function reflect
SELECT * FROM input LATERAL VIEW explode(array(reflect('a'))) t AS x    | the function reflect
SELECT * FROM input LATERAL VIEW reflect('a', 'b') t AS x               | the function reflect
SELECT * FROM VALUES (reflect('a', 'b'))                                | the function reflect
SELECT * FROM input PIVOT (sum(v) FOR k IN (reflect('a')))              | the function reflect
SELECT a FROM input GROUP BY reflect('a')                               | the function reflect
SELECT a FROM input ORDER BY a LIMIT reflect('a')                       | the function reflect
SELECT * FROM input i JOIN LATERAL (SELECT reflect('x'))                | the function reflect
SELECT coalesce(a, reflect('a', 'b')), struct(1) FROM input             | the function reflect
SELECT input_file_name() FROM input                                     | the function input_file_name
SELECT current_user() FROM input                                        | the function current_user
SELECT current_catalog() FROM input                                     | the function current_catalog
SELECT version() FROM input                                             | the function version
SELECT xpath(a, 'b') FROM input                                         | the function xpath
SELECT from_xml(a, 'x int', map('rowValidationXSDPath', '/etc/x'))      | the function from_xml
SELECT from_protobuf(a, 'x', '/etc/passwd') FROM input                  | the function from_protobuf
SELECT of_the_owner(a) FROM input                                       | the function of_the_owner
SELECT * FROM read_files('/etc')                                        | the function read_files
SELECT * FROM python_worker_logs()                                      | the function python_worker_logs
SELECT '${env:HOME}'                                                    | a variable
SELECT * FROM IDENTIFIER('input')                                       | IDENTIFIER()
SELECT IDENTIFIER('reflect')('java.lang.System')                        | IDENTIFIER()
SELECT :x FROM input                                                    | a named parameter
SELECT * FROM odf.cities TIMESTAMP AS OF reflect('a', 'b')               | the function reflect
SELECT * FROM text.x VERSION AS OF 1                                    | text.x
SELECT * FROM input WITH (a = 'b')                                      | a table with options
BEGIN SELECT 1; END                                                     | a compound body
EXECUTE IMMEDIATE 'SELECT 1'                                            | an execute immediate
SET spark.sql.ansi.enabled = false                                      | a set
CREATE FUNCTION f AS 'x' USING JAR 'y'                                  | a create function
ADD JAR 'x'                                                             | an add jars
CREATE TABLE a AS SELECT 1                                              | a create table as select
FROM input INSERT INTO x SELECT *                                       | an insert into statement
DROP TABLE x                                                            | a drop table
CALL backstory.system.expire_snapshots('x')                             | a call
DECLARE VARIABLE x INT                                                  | a create variable
SELECT 1; SELECT 2                                                      | extra input
"""


def table(text):
    return [tuple(cell.strip() for cell in line.split(" | ")) for line in text.strip().splitlines()]


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, namespace="odf_queries")


def test_queries_that_only_compute_are_allowed(store):
    """Clauses, expressions and functions of Spark that only compute are allowed."""
    for (query,) in table(ALLOWED):
        assert not others_read(store, "odf", query, INPUT), query


def test_queries_may_use_names_of_datasets(store):
    """Datasets are named by schema and name, with or without catalog, including quoted names and former
    times."""
    query = "select * from input join backstory.odf.`a-b.c` using (x) join odf.cities using (x)"
    assert others_read(store, "odf", query, INPUT)
    assert others_read(store, "odf", "select * from odf.cities version as of 1", INPUT)


def test_all_other_queries_are_refused(store, spark):
    """Programs, paths, Java, files, settings, other tables and views, and statements are refused anywhere."""
    spark.udf.register("of_the_owner", lambda _: "")
    for query, reason in table(FORBIDDEN):
        with pytest.raises(UsageError) as refused:
            others_read(store, "odf", query, INPUT)
        assert reason in refused.value.message, (query, refused.value.message)
        assert refused.value.code in {"forbidden-query", "wrong-query"}


def test_a_step_cannot_change_the_text_of_another_step(store, spark):
    """The exact text that runs is checked, so a comment cannot hide a bracket."""
    rows = spark.createDataFrame([("A",)], "city string")
    split = Sql(queries=[{"alias": "a", "query": "select 1 --\\"}, {"query": "select reflect('a') --\\"}])
    with pytest.raises(UsageError, match="Syntax error"), run_query(store, rows, split, "odf"):
        pass


def test_a_column_but_no_session_value_can_be_queried(store, spark):
    """The user and session variables are refused. A column may have the name of such a value."""
    rows = spark.createDataFrame([("A",)], "city string")
    spark.sql("DECLARE OR REPLACE VARIABLE secret STRING DEFAULT 'x'")
    for value in ("current_user", "secret"):
        sql = Sql(query=f"select {value} as city from input")
        with pytest.raises(UsageError), run_query(store, rows, sql, "odf"):
            pass
    rows = rows.withColumnRenamed("city", "user")
    with run_query(store, rows, Sql(query="select user from input"), "odf") as output:
        assert [tuple(row) for row in output.collect()] == [("A",)]


def test_add_and_a_dry_run_refuse_a_program_with_file_and_line(dataset, tmp_path):
    """Whether columns are declared or not, the program never runs, and the dataset is not added."""
    ran = tmp_path / "ran"
    steps = (
        f"\n  kind: sql\n  queries:\n  - {{alias: a, query: from input}}\n  - query: |\n      {RUNS % ran}"
    )
    for columns in ("city STRING", ""):
        life = dataset("{kind: append}", columns, preprocess=steps)
        with pytest.raises(UsageError) as refused:
            life.add()
        assert refused.value.code == "forbidden-query"
        assert (
            "manifest.yaml, line 14, content.metadata[0].preprocess.queries[1].query: The query uses a script"
            in refused.value.message
        )
        assert not life.known
        with pytest.raises(UsageError):
            life.push("A", header="city", dry_run=True)
    assert not ran.exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_stored_forbidden_query_is_refused_before_fetching(store, tmp_path, dry_run):
    """Its manifest may be older than the rule."""
    ran = tmp_path / "ran"
    source = polling(
        preprocess=f"\n  kind: sql\n  query: |\n    {RUNS % ran}", fetch="{kind: url, url: none.csv}"
    )
    the = RegisteredDataset(dataset_of(manifest(source), tmp_path), TableName("odf", "cities"))
    receipt = pull(store, the, IngestRequest(dry_run=dry_run))
    assert (receipt.status, receipt.error.code) == ("failed", "forbidden-query")
    assert "content.metadata[0].preprocess.query" in receipt.error.message
    assert not ran.exists()


def test_queries_read_the_datasets_that_they_name(dataset):
    """A query looks up values in another dataset of the warehouse."""
    known = dataset("{kind: append}", "city STRING, state STRING")
    known.push("A,X B,Y")
    name = f"backstory.odf_queries.`{known.name}`"
    query = f"select city, state from input join {name} using (city)"
    life = dataset("{kind: append}", "city STRING", preprocess=f"{{kind: sql, query: '{query}'}}")
    life.push("B")
    assert life.data("city", "state") == [("B", "Y")]
