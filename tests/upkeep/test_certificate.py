"""What is told of an erasure: never the key."""

import pytest

from backstory.model.layout import Layout
from backstory.upkeep.certificate import ForgottenRecord

FILE = "/lake/crm/customer/part-0.parquet"


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        ("anna", FILE, True),
        ("anna", "/lake/of-anna/f.parquet", False),
        ("Anna/B", "/lake/anna%2Fb/f.parquet", False),
        (42, "/lake/crm/42.parquet", False),
        (42, "/lake/crm/0042a.parquet", True),
        ("x", "/lake/k_trunc=an/f.parquet", False),
    ],
)
def test_a_name_that_may_tell_the_key_is_told_by_its_digest(key, name, told):
    """Spelt in any way, as a whole word where it is short, and folders of partitions always."""
    record = ForgottenRecord({"id": key})
    shown = record.show(name)
    assert (shown == name) is told
    assert told or record.digest_of(name) in shown


def test_a_mark_is_of_one_record():
    """Without naming it, and whatever salt another call has."""
    mark = ForgottenRecord({"id": "anna"}).mark
    assert "anna" not in mark
    assert ForgottenRecord({"id": "anna"}).is_marked(mark)
    assert not ForgottenRecord({"id": "bert"}).is_marked(mark)
    assert not ForgottenRecord({"id": "bert"}).is_marked("")


def test_folders_of_the_layout_itself_tell_no_key():
    """A native table lies apart by the year in which its versions end; a user's partitions may be the key's."""
    record = ForgottenRecord({"id": "anna"}, Layout.VERSIONS.folders)
    own, users = "/lake/c/data/valid_to_year=2024/f.parquet", "/lake/c/data/valid_to_year=2024/k=an/f.parquet"
    assert [record.show(own) == own, record.show(users) == users] == [True, False]
    assert ForgottenRecord({"id": "anna"}).show(own) != own
    assert ForgottenRecord({"id": "2024"}, Layout.VERSIONS.folders).show(own) != own
