"""The history's metadata follows the base: section 4.2, R33, R37 to R39, A7 to A11, A33."""

from dataclasses import dataclass, field

import pytest
from historizing import column, dataset, document, model_of, second
from hypothesis import example, given
from hypothesis import strategies as st

from backstory.doors.historize.hist_state import FIXED, sync_hist
from backstory.doors.historize.model import TAIL, base_columns, mirrored_columns
from backstory.errors import Refused

T1, T2 = second(1), second(2)
RETIRED_AT_1 = "2025-01-02 00:00:01.000000"


def base(columns="k* name city", name="rc_c", **more):
    """A resolved dataset; a column is `name:TYPE<former,former`."""
    written = dataset("k*", name, **more)
    written["target_columns"] = [_written(word) for word in columns.split()]
    parents = {each["referenced_dataset"] for each in more.get("references", [])}
    others = [dataset("r*", parent) for parent in sorted(parents)]
    return model_of(document(written, *others)).target_datasets[0]


def _written(word):
    word, _, former = word.partition("<")
    return column(word) | ({"former_names": former.split(",")} if former else {})


def columns_of(hist, part="business"):
    """The history's columns as text: `name:TYPE<former`, in brackets if retired."""
    words = []
    for each in hist.target_columns:
        if (each.system_role in FIXED) == (part == "business"):
            continue
        number = each.max_length or (
            each.decimal_precision and f"{each.decimal_precision},{each.decimal_scale}"
        )
        type_ = "" if each.datatype == "STRING" and not number else f":{each.datatype}"
        type_ += f"({number})" if number and part == "business" else ""
        former = "<" + ",".join(each.former_names) if each.former_names else ""
        words.append(f"{each.name}{type_}{former}" if each.active else f"[{each.name}{type_}{former}]")
    return " ".join(words)


def test_a7_a_history_mirrors_its_base():
    """R3, R11, A7: Name, identity, keys and technical columns follow the base. Copied columns are nullable,
    with one input."""
    hist = sync_hist(base("k* name city"), None, T1)
    assert (hist.target_dataset_name, hist.lineage_key) == ("rc_c_hist", "rawcore:rc_c")
    names = [each.name for each in hist.target_columns]
    assert names == ["rc_c_hist_key", "rc_c_key", "k", "name", "city", *TAIL]
    roles = {each.name: each.system_role for each in hist.target_columns}
    assert (roles["rc_c_hist_key"], roles["rc_c_key"], roles["k"]) == (
        "surrogate_key",
        "entity_key",
        "business_key",
    )
    copied = [each for each in hist.target_columns if each.name in {"k", "name", "city"}]
    assert [(each.nullable, each.input) for each in copied] == [(True, "k"), (True, "name"), (True, "city")]
    required = [each.name for each in hist.target_columns if not each.nullable]
    assert required == ["rc_c_hist_key", "rc_c_key", *(each for each in TAIL if each != "version_ended_at")]
    assert all(each.is_system_managed for each in hist.target_columns)


def test_a8_synchronisation_is_idempotent():
    """R33, A8: A second synchronisation changes nothing at any time."""
    once = sync_hist(base(), None, T1)
    assert sync_hist(base(), once, T2) == once


def test_a9_a_renamed_base_keeps_its_history():
    """R35, A9: The identity stays, and names change, including key columns. The old names become former ones."""
    before = sync_hist(base(), None, T1)
    after = sync_hist(base(name="rc_c_v2", lineage_key="rawcore:rc_c", former_names=["rc_c"]), before, T2)
    assert after.lineage_key == before.lineage_key
    assert (after.target_dataset_name, after.former_names) == ("rc_c_v2_hist", ("rc_c_hist",))
    keys = [(each.name, each.former_names) for each in after.target_columns[:2]]
    assert keys == [("rc_c_v2_hist_key", ("rc_c_hist_key",)), ("rc_c_v2_key", ("rc_c_key",))]
    third = sync_hist(
        base(name="rc_c_v3", lineage_key="rawcore:rc_c", former_names=["rc_c", "rc_c_v2"]), after, T2
    )
    assert third.former_names == ("rc_c_hist", "rc_c_v2_hist")


def test_former_tables_of_a_history_end_in_hist():
    """R36: A name that does not end in `_hist` is never a former name of a history."""
    state = sync_hist(base(), None, T1).model_copy(update={"former_names": ("rc_old", "rc_old_hist")})
    assert sync_hist(base(), state, T2).former_names == ("rc_old_hist",)


@pytest.mark.parametrize(
    ("before", "after", "history"),
    [
        ("k* customer_name", "k* customer_full_name<customer_name", "k customer_full_name<customer_name"),
        ("k* a", "k* b<a", "k b<a"),
        ("k* a c", "k* b<a c", "k b<a c"),
        ("k* a b", "k* a", "k a [b]"),
        ("k* a b c", "k* c", "k c [a] [b]"),
        ("k* a", "k* a b", "k a b"),
        ("k* a", "k* b a", "k b a"),
        ("k* a b", "k* b<a a<b", "k b<a a<b"),
        ("k* a b", "k* b<a c<b", "k b<a c<b"),
        ("k* a b c", "k* b<a c<b d<c", "k b<a c<b d<c"),
        ("k* a", "k* b<a a", "k b<a a"),
        ("k* a b", "k* b<a", "k b [a]"),
        ("k* a:STRING(10)", "k* a:STRING(20)", "k a:STRING(20)"),
        ("k* a:INTEGER", "k* a:BIGINT", "k a:BIGINT"),
        ("k* a:DECIMAL(10,2)", "k* b:DECIMAL(12,3)<a", "k b:DECIMAL(12,3)<a"),
    ],
)
def test_a10_a33_columns_follow_the_base(before, after, history):
    """R33, R34, R37, A10, A33: Columns are renamed, swapped, moved along a chain, removed, added and widened."""
    first = sync_hist(base(before), None, T1)
    second_ = sync_hist(base(after), first, T2)
    assert columns_of(second_) == history
    assert sync_hist(base(after), second_, second(3)) == second_


def test_two_columns_cannot_share_a_former_name():
    """R41: A former name that two new columns claim is refused with both names."""
    first = sync_hist(base("k* a"), None, T1)
    with pytest.raises(Refused) as refused:
        sync_hist(base("k* b<a c<a"), first, T2)
    assert (refused.value.code, refused.value.keys) == ("AMBIGUOUS_RENAME", ["b", "c"])


def test_a_reused_former_name_is_a_separate_column():
    """R41: After `a` became `b` and a new `a` was added, `b` becoming `c` does not concern the new `a`."""
    state = None
    for columns in ("k* a", "k* b<a", "k* b<a a:DATE", "k* c<a,b a:DATE"):
        state = sync_hist(base(columns), state, T1)
    assert columns_of(state) == "k c<a,b a:DATE"


def test_a_column_cannot_be_renamed_to_a_retired_column():
    """R37, E1: If `x` is retired, `y` cannot become `x`, because the old values are under that name."""
    state = sync_hist(base("k* y"), sync_hist(base("k* x y"), None, T1), T1)
    for rule in ("block", "fork"):
        with pytest.raises(Refused) as refused:
            sync_hist(base("k* x<y", historization={"on_incompatible_type": rule}), state, T2)
        assert (refused.value.code, refused.value.keys) == ("DUPLICATE_COLUMN", ["x"])


def test_a11_the_column_of_a_deleted_reference_stays():
    """R37, A11: The column of a deleted reference is inactive, with its time and without an input."""
    reference = {
        "id": 17,
        "referenced_dataset": "rc_region",
        "reference_prefix": "home",
        "key_components": [{"from": "city", "to": "r"}],
    }
    first = sync_hist(base(references=[reference]), None, T1)
    (mirror,) = [each for each in first.target_columns if each.system_role == "foreign_key"]
    assert (mirror.name, mirror.lineage_key, mirror.input) == (
        "home_rc_region_key",
        "fk:17",
        "home_rc_region_key",
    )
    second_ = sync_hist(base(), first, T2)
    (left,) = [each for each in second_.target_columns if each.system_role == "foreign_key"]
    assert (left.name, left.active, left.input) == ("home_rc_region_key", False, None)
    assert left.retired_at == "2025-01-02 00:00:02.000000"


def test_a_renamed_reference_is_found_by_its_id():
    """4.2 rule 2: `fk:<id>` identifies the column under another prefix."""
    reference = {"id": 1, "referenced_dataset": "rc_r", "key_components": [{"from": "city", "to": "r"}]}
    first = sync_hist(base(references=[reference]), None, T1)
    second_ = sync_hist(base(references=[reference | {"reference_prefix": "own"}]), first, T2)
    (mirror,) = [each for each in second_.target_columns if each.system_role == "foreign_key"]
    assert (mirror.name, mirror.former_names) == ("own_rc_r_key", ("rc_r_key",))


def test_a_returning_column_is_no_longer_retired():
    """R39: A column returns with the same or a wider type. Another type is refused, and `fork` keeps both
    columns."""
    gone = sync_hist(base("k* a"), sync_hist(base("k* a b:INTEGER"), None, T1), T1)
    assert [each.retired_at for each in gone.target_columns if not each.active] == [RETIRED_AT_1]
    assert columns_of(sync_hist(base("k* a b:INTEGER"), gone, T2)) == "k a b:INTEGER"
    assert columns_of(sync_hist(base("k* a b:BIGINT"), gone, T2)) == "k a b:BIGINT"
    with pytest.raises(Refused) as refused:
        sync_hist(base("k* a b:DATE"), gone, T2)
    assert (refused.value.code, refused.value.keys) == ("REINTRODUCED_TYPE_CONFLICT", ["b"])
    forked = sync_hist(base("k* a b:DATE", historization={"on_incompatible_type": "fork"}), gone, T2)
    assert columns_of(forked) == "k a b:DATE [b__until_20250102000002:INTEGER<b]"
    assert [each.retired_at for each in forked.target_columns if not each.active] == [RETIRED_AT_1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a:BIGINT", "a:INTEGER"),
        ("a:STRING(20)", "a:STRING(10)"),
        ("a", "a:STRING(10)"),
        ("a:DECIMAL(10,2)", "a:DECIMAL(10,3)"),
        ("a:DECIMAL(10,2)", "a:DECIMAL(9,2)"),
        ("a:DECIMAL(10,2)", "a:FLOAT"),
        ("a:TIMESTAMP", "a:DATE"),
        ("a", "a:INTEGER"),
        ("a:INTEGER", "a"),
    ],
)
def test_an_incompatible_type_is_refused_or_forked(before, after):
    """R40, 4.4: A type that cannot hold every old value conflicts. With `fork`, the old column keeps values,
    type and former names."""
    first = sync_hist(base(f"k* {before}"), None, T1)
    hashed = {} if "FLOAT" not in after else {"hash_as": "DECIMAL(10,2)"}
    for rule in ("block", "fork"):
        written = dataset(f"k* {after}", historization={"on_incompatible_type": rule})
        written["target_columns"][1] |= hashed
        changed = model_of(document(written)).target_datasets[0]
        if rule == "block":
            with pytest.raises(Refused) as refused:
                sync_hist(changed, first, T2)
            assert (refused.value.code, refused.value.keys) == ("HIST_TYPE_CONFLICT", ["a"])
            continue
        state = sync_hist(changed, first, T2)
        assert columns_of(state).endswith(f"[{before.replace('a', 'a__until_20250102000002', 1)}<a]")
        assert [each.name for each in mirrored_columns(base_columns(changed))] == ["k", "a"]
        assert sync_hist(changed, state, second(3)) == state


def test_the_name_of_a_fork_fits_the_length_limit():
    """4.4: A fork of the longest column name still has at most 63 letters."""
    long = "a" * 63
    first = sync_hist(base(f"k* {long}"), None, T1)
    state = sync_hist(base(f"k* {long}:DATE", historization={"on_incompatible_type": "fork"}), first, T2)
    (fork,) = [each for each in state.target_columns if not each.active]
    assert len(fork.name) == 63
    assert fork.former_names == (long,)


# Random evolutions

NAMES = st.sampled_from("abcdef")
TYPES = st.sampled_from(
    ["STRING(5)", "STRING(9)", "INTEGER", "BIGINT", "DECIMAL(8,2)", "DECIMAL(9,3)", "DATE"]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES, TYPES),
        st.tuples(st.just("drop"), NAMES, NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("swap"), NAMES, NAMES),
        st.tuples(st.just("chain"), NAMES, NAMES),
        st.tuples(st.just("retype"), NAMES, TYPES),
        st.tuples(st.just("retire"), NAMES, NAMES),
        st.tuples(st.just("reference"), NAMES, NAMES),
        st.tuples(st.just("dataset"), NAMES, NAMES),
        st.tuples(st.just("sync"), NAMES, NAMES),
    ),
    max_size=25,
)


@dataclass
class Evolving:
    """A base with columns by name, each with a type and former names."""

    columns: dict[str, tuple[str, list[str]]] = field(default_factory=lambda: {"a": ("STRING(5)", [])})
    inactive: set[str] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=lambda: ["rc_c"])

    def step(self, kind, one, other):
        if kind == "add":
            self.columns.setdefault(one, (other, []))
        elif kind == "dataset":
            self.names.append(f"rc_c{len(self.names)}")
        elif kind == "reference":
            self.references ^= {one}
        elif one in self.columns:
            getattr(self, f"_{kind}", lambda *_: None)(one, other)

    def _drop(self, one, _):
        if len(self.columns) > 1:
            del self.columns[one]
            self.inactive.discard(one)

    def _retire(self, one, _):
        self.inactive ^= {one}

    def _retype(self, one, type_):
        self.columns[one] = (type_, self.columns[one][1])

    def _rename(self, one, other):
        if other not in self.columns and one not in self.inactive:
            type_, former = self.columns.pop(one)
            self.columns[other] = (type_, [*(name for name in former if name != other), one])

    def _swap(self, one, other):
        if other in self.columns and one != other:
            (type1, former1), (type2, former2) = self.columns[one], self.columns[other]
            self.columns[one] = (type2, [*former2, other])
            self.columns[other] = (type1, [*former1, one])

    def _chain(self, one, other):
        """`one` gets the name of `other`, which gets another name."""
        if other in self.columns and one != other and not {one, other} & self.inactive:
            free = next((name for name in "abcdefgh" if name not in self.columns), None)
            if free:
                self._rename(other, free)
                self._rename(one, other)

    def base(self):
        written = dataset(
            "k*",
            self.names[-1],
            lineage_key="rawcore:rc_c",
            former_names=self.names[:-1],
            historization={"on_incompatible_type": "fork"},
            references=[
                {
                    "id": name,
                    "referenced_dataset": "rc_r",
                    "reference_prefix": name,
                    "key_components": [{"from": "k", "to": "r"}],
                }
                for name in sorted(self.references)
            ],
        )
        for name, (type_, former) in self.columns.items():
            made = column(f"{name}:{type_}") | {"active": name not in self.inactive}
            written["target_columns"].append(
                made | {"former_names": [each for each in former if each != name]}
            )
        return model_of(document(written, dataset("r*", "rc_r"))).target_datasets[0]


def business(state):
    return [each for each in state.target_columns if each.system_role not in FIXED]


@given(STEPS)
@example([("add", "f", "STRING(9)"), ("swap", "a", "f"), ("sync", "a", "a"), ("retype", "a", "STRING(5)")])
def test_random_evolutions_keep_the_laws(steps):
    """R33, R37: After any change of the base, the history's columns are dense, unique and complete, in the
    base's order. Repetition changes nothing."""
    owner, state, clock = Evolving(), None, 1
    for step in [*steps, ("sync", "a", "a")]:
        owner.step(*step)
        if step[0] != "sync":
            continue
        clock += 1
        made = owner.base()
        before = None if state is None else state.model_copy(deep=True)
        after = _synchronised(made, state, clock)
        assert state == before, "the function is pure"
        if after is None:
            continue
        _assert_lawful(made, state, after)
        for later in (clock, clock + 1000):
            assert sync_hist(made, after, second(later)) == after
        state = after


def _synchronised(made, state, clock):
    """The new state, or None if its meaning is ambiguous."""
    try:
        return sync_hist(made, state, second(clock))
    except Refused as refused:
        if refused.code in {"AMBIGUOUS_RENAME", "DUPLICATE_COLUMN"}:
            return None
        raise


def _assert_lawful(made, before, after):
    names = [each.name for each in after.target_columns]
    assert len(set(names)) == len(names)
    assert names[:2] == [made.hist_key, made.key]
    assert names[-len(TAIL) :] == list(TAIL)
    wanted = mirrored_columns(base_columns(made))
    active = [each for each in business(after) if each.active]
    assert [(each.name, each.datatype, each.max_length) for each in active] == [
        (each.name, each.datatype, each.max_length) for each in wanted
    ]
    assert [each.input for each in business(after)] == [
        each.name if each.active else None for each in business(after)
    ]
    assert names[2 : 2 + len(active)] == [each.name for each in active], "retired columns come last"
    for old in business(before) if before else []:
        matching = [each for each in business(after) if old.name in {each.name, *each.former_names}]
        assert matching, f"{old.name} is lost"
        if not old.active:
            (same,) = [each for each in business(after) if each.name == old.name] or [None]
            if same is not None and not same.active:
                assert same.retired_at == old.retired_at
