"""Metrics for Prometheus while the server works."""

from time import monotonic, sleep
from urllib.request import urlopen

import pytest
from destination import LIVE, Place, refusal
from prometheus_client.parser import text_string_to_metric_families

from backstory.errors import Failed
from backstory.observe import serve_metrics, time_stage


@pytest.fixture(scope="module")
def metrics():
    """Read the figures as Prometheus does, by name and labels."""
    port = serve_metrics("127.0.0.1", 0).server_port

    def read():
        with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            families = text_string_to_metric_families(page.read().decode())
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    return read


def grown(before, after):
    """The figures of backstory that increased, with their increase, without histogram buckets."""
    return {
        key: value - before.get(key, 0)
        for key, value in after.items()
        if key[0].startswith("backstory_") and value > before.get(key, 0)
        if not key[0].endswith(("_bucket", "_sum", "_created"))
    }


@pytest.mark.tables_on("iceberg")
def test_batches_rows_stages_and_commits_are_counted(metrics, sender, store, schema):
    """Figures for a batch with a commit, for the same batch again, and for a refused batch."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T1")
    files = place.files("id v n synced \n 1 A 1 T2 \n 2 b 2 T2")
    before = metrics()
    place.send(replace=files, update=place.files("id v \n 9 z"))
    first = metrics()
    assert grown(before, first) == {
        ("backstory_batches_total", "committed"): 1,
        ("backstory_rows_total", "inserted"): 1,
        ("backstory_rows_total", "updated"): 1,
        ("backstory_rows_total", "ignored"): 1,
        ("backstory_commits_total",): 1,
        ("backstory_requests_total", "WriteBatch", "done"): 1,
    } | {
        ("backstory_stage_seconds_count", stage): 1
        for stage in ("digest", "decode", "slice", "plan", "write", "commit")
    }
    place.send(replace=place.files("id v n synced \n 1 A 1 T2"))
    second = grown(first, metrics())
    assert second["backstory_batches_total", "nothing"] == 1
    assert ("backstory_commits_total",) not in second
    before = metrics()
    assert refusal(place.reply(replace=place.files([{"id": "seven"}])))
    assert grown(before, metrics())["backstory_requests_total", "WriteBatch", "refused"] == 1


def test_a_metrics_port_in_use_is_an_error():
    """A metrics port in use is reported in the same way as the server's own port."""
    port = serve_metrics("127.0.0.1", 0).server_port
    with pytest.raises(Failed) as caught:
        serve_metrics("127.0.0.1", port)
    assert caught.value.code == "port-in-use"


def test_a_stage_excludes_the_time_of_its_inner_stages(metrics):
    """The stages of a batch add up to its duration."""
    before, began = metrics(), monotonic()
    with time_stage("test outer"):
        begun_inside = monotonic()
        for _ in range(2):
            with time_stage("test inner"):
                sleep(0.02)
        inside = monotonic() - begun_inside
    outside = monotonic() - began
    seconds = {
        stage: metrics()["backstory_stage_seconds_sum", stage]
        - before.get(("backstory_stage_seconds_sum", stage), 0)
        for stage in ("test outer", "test inner")
    }
    assert seconds["test inner"] >= 0.04
    rounding = 1e-6
    assert inside - rounding <= sum(seconds.values()) <= outside + rounding
