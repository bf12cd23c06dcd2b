"""The cost model recovers the parts of runs, and pictures and pages show the measurements."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks.asked import Asked
from benchmarks.charts import bars, lines
from benchmarks.growth.model import fitted, off
from benchmarks.report import Report, ratio, spread

RUNS = [
    {"records": r, "versions": v, "touched": t, "seconds": 0.5 + r * 1e-5 + t * 2e-5}
    for r, v, t in ((1000, 0, 10), (5000, 10, 500), (20000, 600, 100), (9000, 50, 9000), (70000, 0, 7))
]


def test_a_model_recovers_the_parts_of_runs():
    model = fitted(RUNS, "seconds")

    assert model.parts["one"] == pytest.approx(0.5)
    assert model.parts["records"] == pytest.approx(1e-5)
    assert off(model, RUNS) < 1e-6
    assert model.predicted({"records": 10**6, "versions": 0, "touched": 0}) == pytest.approx(10.5)


def test_no_part_of_a_model_has_negative_cost():
    runs = [{**run, "seconds": 1 + run["touched"] * 1e-4 - run["records"] * 1e-6} for run in RUNS]

    assert min(fitted(runs, "seconds").parts.values()) >= 0


def test_pictures_are_xml_with_every_figure():
    chart = bars("a & b", {"warm": {"ours": 1.5, "theirs (x 1)": 30.0}}, ["ours"])
    curve = lines("t", "x", "y", {"": ([(1, 2), (3, 4)], [(1, 2.1), (3, 3.9)])})

    assert {"1.5 s", "30.0 s", "ours", "theirs"} <= {each.text for each in ET.fromstring(chart).iter()}
    assert len([each for each in ET.fromstring(curve).iter() if each.tag.endswith("circle")]) == 2


def test_a_page_contains_measurement_scale_and_tables(tmp_path):
    report = Report("name", "A title", Asked(results=tmp_path, scale=0.5))
    report.table("Times", ["", "a|b"], [["x", "1 s"]], "A note.")
    report.data["more"] = {"x": 1}
    report.write()

    page = (tmp_path / "name.md").read_text()
    assert page.startswith("# A title\n\nMeasured ")
    assert "| x | 1 s |" in page
    assert "a\\|b" in page
    assert "0.5 of the published size" in page
    assert '"more"' in (tmp_path / "name.json").read_text()


def test_medians_and_ratios_are_computed():
    assert spread([]) == "–"
    assert spread([2.0]) == "2.00 s"
    assert spread([3.0, 1.0, 2.0]) == "2.00 s (1.00 to 3.00)"
    assert ratio([2.0], [10.0, 30.0, 20.0]) == 10
    assert ratio([], [1.0]) is None
