"""Answers about a life: printed, in a notebook, in a file."""

import pyarrow as pa
import pytest
from told_lives import CORRECTED, told

import backstory
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.reading.timelines import Timeline, require_axis, timeline_of


def test_it_draws_itself_in_a_terminal_a_notebook_and_a_file(tmp_path):
    life = Timeline(told(CORRECTED), ["v", "same"], "both", "crm.customer k=k")
    assert isinstance(life, backstory.Timeline)
    assert str(life).count("known from") == len(life.lanes) == 3
    assert life._repr_html_().startswith("<svg")
    life.save(tmp_path / "life.svg")
    assert (tmp_path / "life.svg").read_text("utf-8").count("known") == 3
    with pytest.raises(UsageError, match="cannot be written"):
        life.save(tmp_path / "none" / "life.svg")


def test_on_the_valid_axis_it_is_one_lane_of_what_is_told():
    life = Timeline([each for each in told(CORRECTED) if each["known_to"] is None], ["v"])
    assert "known from" not in str(life)
    assert len(life.lanes) == 1


def test_of_no_record_it_says_so():
    assert str(Timeline([], [])) == "There is no version of this record."
    assert "There is no version" in Timeline([], []).svg()


def test_an_axis_that_is_none_or_contradicted_is_refused():
    require_axis("both")
    for axis, known in (("recorded", None), ("both", "2024-01-01")):
        with pytest.raises(UsageError) as refused:
            require_axis(axis, known)
        assert refused.value.code == "bad-option"


def test_a_key_of_32_bits_is_titled_by_the_number_that_it_shows():
    (single,) = pa.array([72.1], pa.float32()).to_pylist()
    told = {"k": 72.1, "v": "a", "valid_from": None, "valid_to": None}
    assert timeline_of(TableName("crm", "t"), {"k": single}, [told], {}).title == "crm.t k=72.1"
    assert timeline_of(TableName("crm", "t"), {"k": "x"}, [], {}).title == "crm.t k=x"
