"""Row groups without any of the rows are not read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.stores.metadata.parquet_files import greatest_in_groups, groups_with, positions_in


def test_row_groups_without_a_selected_row_are_skipped(tmp_path):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"v": range(20)}), path, row_group_size=7)
    with pq.ParquetFile(path) as file:
        chosen = np.isin(np.arange(7, 20), [15, 19])
        groups, rows = groups_with(file.metadata, [1, 2], chosen)
        assert (groups, positions_in(file.metadata, groups)[np.asarray(rows)].tolist()) == ([2], [15, 19])
        assert groups_with(file.metadata, [0], np.zeros(7, bool))[0] == []


def test_a_row_group_without_statistics_has_the_maximum_of_the_file(tmp_path):
    """This applies to a group of NULLs, and to a file without statistics."""
    path, column = tmp_path / "f.parquet", {"id": 1, "name": "v"}
    field = pa.field("v", pa.int64(), metadata={"PARQUET:field_id": "1"})
    rows = pa.table([pa.array([1, 5, None, None, 9])], pa.schema([field]))
    for statistics, greatest in ((True, [5, 99, 9]), (False, [99, 99, 99])):
        pq.write_table(rows, path, row_group_size=2, write_statistics=statistics)
        with pq.ParquetFile(path) as file:
            assert greatest_in_groups(file, column, 99) == list(zip(greatest, [2, 2, 1], strict=True))
