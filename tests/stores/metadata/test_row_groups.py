"""Row groups that have none of the rows are not read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.stores.metadata.row_groups import groups_with, positions_in


def test_groups_without_a_chosen_row_are_passed_over(tmp_path):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"v": range(20)}), path, row_group_size=7)
    with pq.ParquetFile(path) as file:
        chosen = np.isin(np.arange(7, 20), [15, 19])
        groups, rows = groups_with(file.metadata, [1, 2], chosen)
        assert (groups, positions_in(file.metadata, groups)[np.asarray(rows)].tolist()) == ([2], [15, 19])
        assert groups_with(file.metadata, [0], np.zeros(7, bool))[0] == []
