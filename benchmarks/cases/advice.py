"""Quotes from the tools' own pages whose advice loses changes, with addresses; read in November 2026."""

from typing import Final

ADVICE: Final = """\
* dbt, [hard_deletes](https://docs.getdbt.com/reference/resource-configs/hard-deletes): "Supported options are `ignore` (default)": unless it is told otherwise, a record that is gone stays open.
* dbt, a maintainer's [note on duplicates in snapshots](https://gist.github.com/jeremyyeo/7282a2e25d86fe8b449ed70e8cdf10ff): "dbt is not responsible for making sure your data is unique"; the remedy shown is a backup before each run.
* SQLMesh, [issue 5757](https://github.com/SQLMesh/sqlmesh/issues/5757) and [issue 5332](https://github.com/SQLMesh/sqlmesh/issues/5332), both open: closing a version takes the new value where the old one was NULL ("the closed period's row can show the new value even though it was NULL for the whole period").
* SQLMesh, [issue 5744](https://github.com/SQLMesh/sqlmesh/issues/5744): after a change of the model's code its table is built anew from the source, which "destroys irreplaceable historical rows".
* SQLMesh, [the change that brought SCD by column](https://github.com/TobikoData/sqlmesh/pull/1997): changes are dated by the time of the run, "a less precise approach to SCD Type 2".
* dlt, [issue 1252](https://github.com/dlt-hub/dlt/issues/1252): "primary_key is currently ignored when scd2 is used": rows are told apart by the hash of the whole row, so that a record may have two open versions.
* MERGE by hand, [a guide for incremental loads](http://opinaonl.blogspot.com/2022/10): where a delivery has several changes of a key, "we need to pick the last one": the ones before it are lost.
""".splitlines()
