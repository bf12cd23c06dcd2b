"""The locations of a table's files, compared in any spelling."""

from pathlib import Path

import pytest

from backstory.stores.iceberg.storage import Places, bare_location, is_inside


@pytest.mark.parametrize(
    ("spelt", "plain"),
    [
        ("file:/a/b/", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("/a//b/../b", "/a/b"),
        ("a/b", f"{Path.cwd()}/a/b"),
        ("s3a://bucket/a/", "s3://bucket/a"),
        ("hdfs://name:8020/a/b", "/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
    ],
)
def test_a_location_has_one_normal_form(spelt, plain):
    assert bare_location(spelt) == plain


def test_a_folder_contains_no_files_of_folders_with_a_longer_name():
    """A table owns only files below its folder, wherever its properties let it write."""
    assert is_inside("/a/b/c", "file:/a/b/")
    assert not is_inside("/a/bc", "/a/b")
    places = Places("s3://bucket/t", ("s3://other/rows",), ("s3://bucket/old",))
    owned = ("s3a://bucket/t/data/f", "s3://other/rows/f", "s3://bucket/old/f", "s3://bucket/t2/f")
    assert [places.owns(each) for each in owned] == [True, False, False, False]
