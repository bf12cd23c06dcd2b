"""Tables and lives on a terminal of 80 columns: no column is cut to three letters."""

from datetime import UTC, datetime
from io import StringIO

from rich.console import Console

from backstory.cli import output
from backstory.cli.output import lay_out
from backstory.reading.timelines import Lane, Timeline, draw_lanes

WIDTH = 80


def seen(names, rows, width=WIDTH):
    stream = StringIO()
    Console(file=stream, width=width or 1 << 16).print(lay_out(names, rows, width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_fitting_rows_are_shown_as_a_table():
    assert seen(["id", "name"], [["1", "Ada"], ["2", "[b]Grace"]]) == ["id  name", "1   Ada", "2   [b]Grace"]
    assert seen(["id", "name"], []) == ["id  name"]


def test_only_the_long_cell_of_a_row_is_clipped():
    lines = seen(["id", "text", "at"], [["1", "x" * 200, "2024-01-01T00:00:00Z"]])
    assert len(lines) == 2
    assert lines[1].startswith("1   xxxx")
    assert lines[1].endswith("x…  2024-01-01T00:00:00Z")
    assert len(lines[1]) == WIDTH


def test_many_columns_are_shown_record_by_record():
    names = [f"column_{number}" for number in range(9)]
    lines = seen(names, [["value " * 3] * 9] * 2)
    assert len(lines) == 2 * (1 + 9)
    assert lines[0].startswith("1 ─")
    assert lines[1] == "column_0  value value value"


def test_cells_are_not_clipped_without_a_terminal():
    assert len(seen(["a", "b"], [["x" * 500, "y"]], None)[1]) == 503


def at(year):
    return datetime(year, 1, 1, tzinfo=UTC)


def life(*versions):
    """Yearly versions of a record whose name never changes."""
    rows = [
        {"name": "Kazakhstan " * 9, "capital": capital, "people": people}
        | {"valid_from": at(2010 + number), "valid_to": at(2011 + number)}
        for number, (capital, people) in enumerate(versions)
    ]
    return Timeline(rows, ["name", "capital", "people"])


def test_a_drawn_history_shows_only_changing_columns():
    drawn = str(life(("Astana", 1), ("Nur-Sultan", 1), ("Astana", 1)))
    assert "capital: Astana\n" in drawn
    assert "Kazakhstan" not in drawn
    assert "people" not in drawn


def test_a_single_version_is_drawn_with_its_row():
    assert "people: 1" in str(life(("Astana", 1)))


def test_a_drawn_history_fits_the_terminal():
    lines = life(("Astana " * 9, 1), ("Nur-Sultan " * 9, 2)).draw(WIDTH).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert " ".join("".join(line[35:] for line in lines[1:]).split()).count("Nur-Sultan") == 9
    assert [line[:4] for line in lines if line[:2] == "20"] == ["2010", "2011", "2012"]


def test_times_and_numbers_are_never_cut():
    """Texts are cut first. If that is not enough, each record is shown separately."""
    time = "2026-11-23T23:28:54.683690Z"
    lines = seen(["recorded_at", "snapshot_id", "text"], [[time, "1138077945343930999", "x" * 60]])
    assert time in lines[1]
    assert "1138077945343930999" in lines[1]
    assert lines[1].endswith("…")
    by_itself = seen(["a", "b", "c"], [[time, time, time]])
    assert [line.split()[1] for line in by_itself[1:]] == [time] * 3


def test_the_labels_of_a_time_axis_are_separated():
    """Labels that are longer than the bars are neither joined nor broken."""
    seconds = [datetime(2026, 1, 1, 10, 0, second, tzinfo=UTC) for second in (0, 1, 2)]
    versions = [
        {"v": number, "valid_from": seconds[number], "valid_to": seconds[number + 1]} for number in (0, 1)
    ]
    lines = draw_lanes([Lane(versions)], ["v"], seconds[2], WIDTH)
    assert lines[0].strip() == "2026-01-01 10:00:00  2026-01-01 10:00:02"


def test_long_words_of_a_drawn_history_are_not_broken():
    """A word that does not fit extends beyond the edge."""
    words = "Bundesverfassungsgerichtspräsidentinnenwahl" * 2
    drawn = life((words, 1), ("Astana", 2)).draw(WIDTH)
    assert words in drawn


def test_a_text_continues_on_a_second_line():
    """A text that fits two lines is shown completely."""
    time = "2026-11-23T23:28:54.683690Z"
    counts = "new 1, changed 249, closed 1"
    lines = seen(["recorded_at", "from", "counts"], [[time, time, counts]], 78)
    assert [line[58:].strip() for line in lines[1:]] == ["new 1, changed 249,", "closed 1"]


def test_wide_cuts_and_folds_nothing(monkeypatch):
    """On a terminal of 80 columns, each row is one line with all of its cells."""
    stream = StringIO()
    terminal = Console(
        file=stream, width=WIDTH, force_terminal=True, soft_wrap=True, highlight=False, color_system=None
    )
    monkeypatch.setattr(output, "console", terminal)
    row = {f"column_{number}": "value " * 3 for number in range(9)} | {"text": "x" * 200}
    output.show([row], "table", wide=True)
    head, line = stream.getvalue().splitlines()
    assert (head.split(), line.count("value"), "x" * 200 in line) == (list(row), 27, True)
    stream.truncate(stream.seek(0))
    output.show([row], "table")
    assert len(stream.getvalue().splitlines()) > len(row)
