"""Real races of `backstory pull`."""

import pytest
from commands import command, configure
from manifesting import manifest, polling
from pyiceberg.catalog.sql import SqlCatalog

COLUMNS = "[{name: id, type: Int32}, {name: city, type: {kind: Option, inner: String}}]"
READ = f"{{kind: csv, header: true, schema: {{fields: {COLUMNS}}}}}"
FILES = 3

pytestmark = pytest.mark.process


def test_two_concurrent_first_pulls_load_the_data_once(tmp_path):
    """On a new warehouse, both succeed, or one is asked to try again later."""
    source = polling("{kind: append}", fetch="{kind: filesGlob, path: 'in/*.csv'}", read=READ)
    (tmp_path / "cities.yaml").write_text(manifest(source))
    configure(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number}.csv").write_text(f"id,city\n{number},Bern\n")
    words = ["pull", "cities.yaml"]
    with command(tmp_path, *words) as one, command(tmp_path, *words) as other:
        ends = [one.end(), other.end()]
    for code, output, warned in ends:
        assert code in {0, 75}, (code, output, warned)
        assert "Traceback" not in warned
        assert code == 0 or "another writer" in output + warned, (output, warned)
    assert 0 in {code for code, *_ in ends}
    if {code for code, *_ in ends} != {0}:
        with command(tmp_path, *words) as again:
            assert again.end()[0] == 0
    assert rows(tmp_path / "warehouse" / "catalog.db") == ({"odf.cities", "odf.cities__log"}, [*range(FILES)])


def rows(catalog):
    """The tables, and the offsets of the dataset, read by another program."""
    with SqlCatalog("backstory", uri=f"sqlite:///{catalog}", init_catalog_tables="false") as opened:
        names = [name for space in opened.list_namespaces() for name in opened.list_tables(space)]
        offsets = opened.load_table("odf.cities").scan().to_arrow()["offset"]
    return {".".join(name) for name in names}, sorted(offsets.to_pylist())
