"""R52, R53, R55: The views follow the present model, whatever it contained before."""

import pytest
from historizing import dataset, document, second

from backstory.doors.historize.upkeep import Upkeep

LABELS = {"new": "N", "changed": "C", "deleted": "D", "reappeared": "R"}
RULES = {"allow_prune": True, "keep_last": False, "state_labels": LABELS}
VIEWS = ("all", "labeled", "effective")


@pytest.fixture
def owner(place):
    return Owner(place)


class Owner:
    """The owner of a model and its stage file, who changes both and loads."""

    def __init__(self, place):
        self.place, self.count = place, 0

    def load(self, rules, csv="k,a\nx,1\n", columns="k* a", *, name="rc_c", dry_run=False, **more):
        self.count += 1
        (self.place.folder / "stage.csv").write_text(csv)
        options = {"lineage_key": "rawcore:rc_c", **more}
        self.place.use(document(dataset(columns, name, input="stage.csv", historization=rules, **options)))
        (receipt,) = self.place.loads(f"r{self.count}", self.count, dry_run=dry_run)
        assert receipt.error is None
        return receipt

    def upkeep(self, name="rc_c"):
        place = self.place
        return Upkeep(
            place.model, place.folder, place.target, place.target._engine, name, clock=lambda: second(99)
        )

    def states(self, name="rc_c"):
        return [
            state for (state,) in self.place.rows(f"SELECT version_state FROM rawcore.{name}_hist_labeled")
        ]

    def views(self, name="rc_c"):
        return [each for each in VIEWS if self.place.has("rawcore", f"{name}_hist_{each}")]

    def made(self):
        """The identity of a view, which shows whether it was recreated."""
        query = (
            "SELECT oid::bigint FROM pg_class WHERE relname LIKE 'rc_c_hist_%' AND relkind = 'v'"
            if self.place.name == "postgres"
            else "SELECT view_oid FROM duckdb_views() WHERE view_name LIKE 'rc_c_hist_%'"
        )
        return sorted(self.place.rows(query))


def test_changed_labels_appear_in_the_view(owner):
    """R53: After a load with other labels, `_hist_labeled` contains them."""
    owner.load({"state_labels": LABELS})
    owner.load({"state_labels": {**LABELS, "new": "NEU"}})

    assert owner.states() == ["NEU"]


def test_the_effective_view_follows_a_changed_column_or_granularity(owner):
    """R52: After a load with another column or granularity, `_hist_effective` uses it."""
    csv, columns = "k,a,b\nx,2024-01-01,2024-06-01\n", "k* a:DATE b:DATE"
    rows = []
    for dating in ({"column": "a"}, {"column": "b"}, {"column": "b", "granularity": "date"}):
        owner.load({"effective_dating": dating}, csv, columns)
        rows += owner.place.rows("SELECT effective_from FROM rawcore.rc_c_hist_effective")

    assert [str(each)[:10] for (each,) in rows] == ["2024-01-01", "2024-06-01", "2024-06-01"]
    assert rows[1] != rows[2]


def test_the_view_of_a_removed_rule_is_dropped(owner):
    """R52, R53: A load without the rule drops only its view."""
    dating = {"effective_dating": {"column": "d"}}
    stage = ("k,d\nx,2024-01-01\n", "k* d:DATE")
    owner.load({"state_labels": LABELS, **dating}, *stage)
    assert owner.views() == ["labeled", "effective"]

    owner.load(dating, *stage)
    assert owner.views() == ["effective"]

    owner.load({}, *stage)
    assert owner.views() == []


def test_a_load_without_rule_or_column_changes_keeps_the_views(owner):
    """R53: Views are recreated only if rules or columns change."""
    owner.load(RULES)
    before = owner.made()
    owner.load(RULES, "k,a\nx,2\n")
    assert owner.made() == before != []

    owner.load(RULES, "k,a,b\nx,2,3\n", "k* a b")
    assert owner.made() != before
    assert owner.place.rows("SELECT b FROM rawcore.rc_c_hist_labeled WHERE version_ended_at IS NULL") == [
        ("3",)
    ]


def test_a_dry_run_keeps_the_views(owner):
    """R53: A dry run with other labels changes no view."""
    owner.load(RULES)
    before = owner.made()
    owner.load({**RULES, "state_labels": {**LABELS, "new": "NEU"}}, dry_run=True)

    assert owner.made() == before
    assert owner.states() == ["N"]


def test_a_load_updates_the_views_made_by_pruning(owner):
    """R53, R55: If the model changed, the next load recreates pruning's views."""
    owner.load(RULES)
    owner.load(RULES, "k,a\nx,2\n")
    owner.upkeep().prune(second(9), apply=True)
    owner.load({**RULES, "state_labels": {**LABELS, "changed": "ANDERS"}}, "k,a\nx,3\n")

    assert sorted(owner.states()) == ["ANDERS", "ANDERS"]
    assert len(owner.place.rows("SELECT 1 FROM rawcore.rc_c_hist_all")) == 3


def test_a_table_with_the_name_of_a_view_is_kept(owner):
    """R53: If the model defines no view, a table with its name is not ours."""
    owner.load({})
    owner.place.create("rawcore", "rc_c_hist_labeled", owner.place.dataset.target_columns)
    owner.load({}, "k,a,b\nx,2,3\n", "k* a b")

    assert owner.views() == ["labeled"]


def test_views_and_archive_follow_a_renamed_dataset(owner):
    """R36, R55: Archive and views are renamed with the history, and nothing has the old name."""
    owner.load(RULES)
    owner.load(RULES, "k,a\nx,2\n")
    owner.upkeep().prune(second(9), apply=True)
    receipt = owner.load(RULES, "k,a\nx,2\n", name="rc_d", former_names=["rc_c"])

    assert owner.views("rc_c") == []
    assert owner.views("rc_d") == ["all", "labeled"]
    assert not owner.place.has("rawcore", "rc_c_hist_archive")
    assert len(owner.place.rows("SELECT * FROM rawcore.rc_d_hist_all")) == 2
    assert owner.states("rc_d") == ["C"]
    assert "RENAME_DATASET rc_c_hist_archive to rc_d_hist_archive" in receipt.schema_changes
    assert owner.upkeep("rc_d").prune(second(9), apply=True).versions == 0


def test_a_view_of_the_old_name_does_not_block_a_wider_column(owner):
    """R40, R53: A column of a renamed history can be widened, although a view of the old name used it."""
    owner.load(RULES, "k,n\nx,1\n", "k* n:INTEGER")
    owner.load(RULES, "k,n\nx,5000000000\n", "k* n:BIGINT", name="rc_d", former_names=["rc_c"])

    rows = owner.place.rows("SELECT n FROM rawcore.rc_d_hist_labeled ORDER BY n")
    assert rows == [(1,), (5_000_000_000,)]


def test_a_rename_affects_no_other_history(owner):
    """R36: If another dataset has the former name, its archive and views are kept."""
    owner.load(RULES)
    owner.load(RULES, name="rc_d", former_names=["rc_c"])
    for number in "12":
        owner.load(RULES, f"k,a\nx,{number}\n", lineage_key="rawcore:other")
    owner.upkeep().prune(second(9), apply=True)
    owner.load(RULES, "k,a\nx,7\n", name="rc_d", former_names=["rc_c"])

    assert owner.place.has("rawcore", "rc_c_hist_archive")
    assert owner.views("rc_c") == ["all", "labeled"]
    assert owner.views("rc_d") == ["labeled"]
