"""Checks of `add` before a source is contacted: outputs of queries, and names (R7, R33)."""

from contextlib import suppress
from functools import partial

import pytest
from datasets import Dataset, add_datasets
from manifesting import dataset_of, folded, manifest, polling, push

from backstory.doors.odf import adding, door
from backstory.doors.odf.preprocess import lint_dataset
from backstory.doors.odf.registry import RegisteredDataset, find_datasets, refuse_repeated, stored_datasets
from backstory.errors import UsageError
from backstory.model.table import TableName

FIELDS = "{name: date, type: date}, {name: v, type: int64}, {name: note, type: {kind: option, inner: string}}"
READ = f"{{kind: csv, schema: {{fields: [{FIELDS}]}}}}"
LEDGER = "{kind: ledger, primaryKey: [%s]}"
STEPS = "{kind: sql, queries: [{alias: timed, query: 'select *, date as event_time from input'}, {query: 'from timed'}]}"
RENAMED = "select date as event_time, v from input"


def query(text):
    return f"{{kind: sql, engine: spark, query: '{text}'}}"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, namespace="odf_adding")


def codes(added):
    return [lint.code for lint in added.lints]


# The output of preprocess


def test_r33_l2_a_key_that_a_query_renames_is_refused_before_fetching(dataset):
    """Section 1.3: the specification's own example of a Source."""
    life = dataset(LEDGER % "date", read=READ, preprocess=query(RENAMED), fetch="{kind: url, url: none.csv}")
    with pytest.raises(UsageError) as refused:
        life.add()
    assert refused.value.code == "lint-L2"
    assert (
        "line 11, content.metadata[0].merge.primaryKey[0]: there is no column 'date'" in refused.value.message
    )
    assert refused.value.remedy == "Known are event_time, v."
    assert not life.known
    life.add(merge=LEDGER % "event_time")


@pytest.mark.parametrize(
    ("merge", "text", "code"),
    [
        (LEDGER % "v", "select v, date_format(date, ''y'') = ''2'' as event_time from input", "lint-L7"),
        (LEDGER % "v", "select v, interval 1 month as event_time from input", "lint-L7"),
        (LEDGER % "v", "select v, 1 as op from input", "lint-L10"),
        ("{kind: snapshot, primaryKey: [v], compareColumns: [w]}", "select v from input", "lint-L2"),
        ("{kind: upsertStream, primaryKey: [V]}", "select v from input", "lint-L2"),
    ],
)  # fmt: skip
def test_add_refuses_errors_in_the_output_of_a_query(dataset, merge, text, code):
    """L2, L7 and L10 check the query's output, with exact names."""
    with pytest.raises(UsageError) as refused:
        dataset(merge, read=READ, preprocess=query(text)).add()
    assert refused.value.code == code


def test_add_reports_warnings_about_the_output_of_a_query(dataset):
    """L1 reports a time that the query computes, and L6 an optional column that it does not fill in."""
    merge = "{kind: ledger, primaryKey: [note], eventTimeInKey: false}"
    life = dataset(merge, read=READ, preprocess=STEPS)
    assert codes(life.add()) == ["L1", "L6"]
    text = "select coalesce(note, '''') as note, date as event_time from input"
    assert codes(life.add(preprocess=query(text))) == ["L1"]
    report = door.inspect(life.store, life.name, namespace=life.namespace)
    assert [lint.code for lint in report.lints] == ["L1"]


@pytest.mark.parametrize("text", ["select nowhere from input", "select v from input where date_add(v) = 1"])  # fmt: skip
def test_a_query_that_cannot_be_analysed_is_refused_by_add(dataset, text):
    """The error contains file and line, and the columns that the query may use."""
    life = dataset(LEDGER % "v", read=READ, preprocess=query(text))
    with pytest.raises(UsageError) as refused:
        life.add()
    assert refused.value.code == "wrong-query"
    assert "manifest.yaml, line 10, content.metadata[0].preprocess: " in refused.value.message
    assert "date, v, note" in refused.value.remedy
    assert not life.known


def test_a_query_on_undeclared_columns_is_checked_on_arrival(dataset):
    """R33: Without declared columns, the query is checked when rows arrive."""
    made = query("select nowhere as x from input")
    life = dataset(LEDGER % "x", read="{kind: csv, header: true}", preprocess=made)
    assert life.add().lints == ()
    with life.unchanged(), pytest.raises(UsageError) as refused:
        life.push("A", header="k")
    assert (refused.value.code, refused.value.remedy) == ("wrong-query", "The batch has the columns k.")
    assert dataset(LEDGER % "x", read="{kind: csv, ddlSchema: []}", preprocess=made).add().lints


def test_a_query_on_another_dataset_is_checked_later(dataset):
    """The other dataset's columns may be unknown until it has rows. A query on only `input` does not wait."""
    text = "select i.* from input i join odf_adding.nowhere n on i.v = n.k"
    assert dataset(LEDGER % "v", read=READ, preprocess=query(text)).add().status == "added"
    text = "with x as (select nowhere from input) select 1 as v from input"
    with pytest.raises(UsageError, match="nowhere"):
        dataset(LEDGER % "v", read=READ, preprocess=query(text)).add()


def test_each_source_is_checked_against_its_own_query(dataset):
    """One of two push sources is wrong, and the error names it."""
    life = dataset(LEDGER % "v", read=READ, preprocess=query("select v from input"))
    good = push(LEDGER % "v", read=READ, preprocess=query("select v from input"), name="good")
    wrong = push(LEDGER % "v", read=READ, preprocess=query("select v as w from input"), name="wrong")
    text = manifest(good, wrong).replace("name: cities", f"name: {life.name}")
    with pytest.raises(UsageError, match=r"line 16, content\.metadata\[1\]") as refused:
        life.add(text)
    assert refused.value.code == "lint-L2"


def test_checking_queries_leaves_no_view_and_runs_no_job(store, spark, tmp_path):
    """This holds even if the check ends in an error."""
    views, group = spark.catalog.listTables(), "looking at queries"
    spark.sparkContext.setJobGroup(group, "")
    for text in ("select v, count(*) from input group by v order by v", "select w from input"):
        source = push(LEDGER % "v", read=READ, preprocess=query(text))
        with suppress(UsageError):
            lint_dataset(
                store, RegisteredDataset(dataset_of(manifest(source), tmp_path), TableName("odf", "cities"))
            )
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # other tests count the jobs of no group
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    assert spark.catalog.listTables() == views


# Names


def registered(text, folder):
    datasets = folded(text, folder, known=False)
    return [RegisteredDataset(each, TableName("odf", each.name)) for each in datasets]


def test_r7_a_second_manifest_of_a_dataset_is_refused_with_its_line(tmp_path):
    """Neither case nor account distinguishes datasets."""
    one = manifest(push())
    text = f"{one}---\n{one.replace('cities', 'acc/Cities')}"
    with pytest.raises(UsageError) as refused:
        refuse_repeated(registered(text, tmp_path))
    path = tmp_path / "cities.yaml"
    assert refused.value.code == "repeated-name"
    assert refused.value.message == (
        f"{path}, line 15, content.name: the dataset Cities is already defined in {path}, line 4, content.name."
    )


def test_r7_a_manifest_may_be_given_twice(tmp_path):
    """A manifest may be given in a folder and by itself."""
    [each] = registered(manifest(push()), tmp_path)
    refuse_repeated([each, each])
    [town] = registered(manifest(push()).replace("cities", "towns"), tmp_path)
    refuse_repeated([each, town])


def test_r7_names_that_differ_in_case_are_one_dataset(store, tmp_path):
    """In one file, nothing is added. In several files, only the second fails. Known datasets are updated."""
    texts = {name: manifest(push()).replace("cities", name) for name in ("lone", "acc/Lone", "towns")}
    add, add_each = partial(add_datasets, store, "odf_names"), partial(adding.add_each, store, "odf_names")
    both = tmp_path / "both.yaml"
    both.write_text("---\n".join(texts.values()))
    with pytest.raises(UsageError, match=r"both\.yaml, line 15"):
        add(both)
    assert [each.error.code for each in add_each([both])] == ["repeated-name"]
    assert stored_datasets(store, "odf_names").find("lone") is None
    both.unlink()
    for number, text in enumerate(texts.values()):
        (tmp_path / f"{number}.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"1\.yaml, line 4.*0\.yaml, line 4"):
        add(tmp_path)
    outcomes = add_each([tmp_path, tmp_path / "0.yaml"])
    assert [each.status for each in outcomes] == ["added", "failed", "added", "unchanged"]
    assert add(tmp_path / "1.yaml")[0].status == "updated"
    known = stored_datasets(store, "odf_names").find("LONE")
    assert (known.name.name, known.dataset.document["content"]["name"]) == ("lone", "acc/Lone")


def test_a_dataset_added_by_two_processes_is_added_once(store, tmp_path):
    """The second process finds the dataset, or applies the changes in its manifest."""
    path, datasets = tmp_path / "twice.yaml", stored_datasets(store, "odf_twice")
    texts = [manifest(polling(read=f"{{kind: csv, header: {each}}}")) for each in ("true", "true", "false")]
    wanted = []
    for text in texts:
        path.write_text(text.replace("cities", "twice"))
        wanted += find_datasets(datasets, [path])

    assert [adding.add_one(store, each).status for each in wanted] == ["added", "unchanged", "updated"]
    assert datasets.existing("twice").dataset.document == wanted[-1].dataset.document


def test_add_refuses_unsupported_url_schemes(store, tmp_path):
    """Section 1.3: The scheme is checked before fetching, unless a template fills it in."""
    path = tmp_path / "cities.yaml"
    add = partial(add_datasets, store, "odf_names", path, dry_run=True)
    path.write_text(manifest(polling(fetch="{kind: url, url: 's3://bucket/a.csv'}")))
    with pytest.raises(UsageError, match="cannot be fetched by s3"):
        add()
    for url in ("ftp://host/a.csv", "${{ env.BASE }}/a.csv", "C:/a.csv"):
        path.write_text(manifest(polling(fetch=f"{{kind: url, url: '{url}'}}")))
        assert add()[0].status == "added"
