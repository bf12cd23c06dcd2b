"""The report of an erasure never contains the key."""

import pytest

from backstory.model.layout import Layout
from backstory.upkeep.forgetting import ForgottenRecord

FILE = "/lake/crm/customer/part-0.parquet"


@pytest.mark.parametrize(
    ("key", "name", "is_shown"),
    [
        ("anna", FILE, True),
        ("anna", "/lake/of-anna/f.parquet", False),
        ("Anna/B", "/lake/anna%2Fb/f.parquet", False),
        (42, "/lake/crm/42.parquet", False),
        (42, "/lake/crm/0042a.parquet", True),
        ("x", "/lake/k_trunc=an/f.parquet", False),
    ],
)
def test_names_that_may_reveal_the_key_are_shown_as_digests(key, name, is_shown):
    """This holds for any spelling, for short keys as whole words, and always for partition folders."""
    record = ForgottenRecord({"id": key})
    shown = record.show(name)
    assert (shown == name) is is_shown
    assert is_shown or record.digest_of(name) in shown


def test_a_mark_matches_only_its_own_record():
    """The mark does not name the record, and is valid for any salt."""
    mark = ForgottenRecord({"id": "anna"}).mark
    assert "anna" not in mark
    assert ForgottenRecord({"id": "anna"}).is_marked(mark)
    assert not ForgottenRecord({"id": "bert"}).is_marked(mark)
    assert not ForgottenRecord({"id": "bert"}).is_marked("")


def test_partition_folders_of_the_layout_are_shown():
    """A native table is partitioned by the year of ends. A user's partitions may be the key's."""
    record = ForgottenRecord({"id": "anna"}, Layout.VERSIONS.folders)
    own, users = "/lake/c/data/valid_to_year=2024/f.parquet", "/lake/c/data/valid_to_year=2024/k=an/f.parquet"
    assert [record.show(own) == own, record.show(users) == users] == [True, False]
    assert ForgottenRecord({"id": "anna"}).show(own) != own
    assert ForgottenRecord({"id": "2024"}, Layout.VERSIONS.folders).show(own) != own
