"""`backstory pull` in a separate process, which is interrupted."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import java
import pytest
from manifesting import manifest, polling
from serving import SECONDS

BACKSTORY = str(Path(sys.executable).parent / "backstory")
FIRST = "id,city\n1,Bern\n2,Rome\n"
COLUMNS = "[{name: id, type: Int32}, {name: city, type: {kind: Option, inner: String}}]"
READ = f"{{kind: csv, header: true, schema: {{fields: {COLUMNS}}}}}"


@pytest.mark.process
def test_an_interrupt_keeps_committed_rounds(tmp_path):
    """R79: SIGINT during a pull gives exit code 130. Finished rounds are kept, and the next pull continues."""
    source = polling("{kind: append}", fetch="{kind: filesGlob, path: 'in/*.csv'}", read=READ)
    (tmp_path / "cities.yaml").write_text(manifest(source))
    settings = {"spark.master": "local[2]", "spark.driver.memory": "700m"} | java.PLANS
    (tmp_path / "backstory.toml").write_text(f"[spark]\n{java.in_toml(settings)}")
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number:02}.csv").write_text(FIRST)
    words = [BACKSTORY, "pull", "cities.yaml", "--output", "table"]
    running = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metadata = tmp_path / "warehouse" / "odf" / "cities" / "metadata"
    end = time.monotonic() + SECONDS
    while len(list(metadata.glob("snap-*.avro"))) < 3:  # the third is written once the second is committed
        assert time.monotonic() < end
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    output, warned = running.communicate(timeout=SECONDS)
    assert running.returncode == 130, (output, warned)
    assert "Interrupted." in warned
    assert "Traceback" not in warned
    count = rows(tmp_path)
    assert 4 <= count < 80
    assert count % 2 == 0
    subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=SECONDS, check=True)
    assert rows(tmp_path) == 80


def rows(folder):
    """The number of rows in the dataset, read by pyiceberg."""
    from pyiceberg.catalog.sql import SqlCatalog

    with SqlCatalog("backstory", uri=f"sqlite:///{folder / 'warehouse' / 'catalog.db'}") as catalog:
        return len(catalog.load_table("odf.cities").scan().to_arrow())
