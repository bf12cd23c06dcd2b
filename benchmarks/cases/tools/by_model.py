"""backstory's histories by a model, with `hash_profile: strict_v2`."""

import json
from datetime import timedelta

from in_warehouse import FIRST, Kept
from telling import FOLDER, run, table

TYPES = {
    "BIGINT": {"datatype": "BIGINT"},
    "INT": {"datatype": "INTEGER"},
    "STRING": {"datatype": "STRING"},
    "DOUBLE": {"datatype": "DOUBLE"},
    "TIMESTAMP": {"datatype": "TIMESTAMP"},
    "DECIMAL(12,2)": {"datatype": "DECIMAL", "decimal_precision": 12, "decimal_scale": 2},
}


class Model(Kept):
    """Run `warehouse.historize` with a model of the copy's columns."""

    def bring(self, case, copy, number):
        name = table(case)
        columns = [
            {
                "target_column_name": each,
                **TYPES[type_],
                **({"system_role": "business_key"} if each in case["key"] else {}),
            }
            for each, type_ in copy["columns"].items()
        ]
        given = f"src.{name}" if copy["csv"] is None else f"{name}.csv"
        dataset = {
            "historize": True,
            "target_schema": "rawcore",
            "target_dataset_name": name,
            "input": given,
            "target_columns": columns,
        }
        model = {
            "format": "historize/1",
            "target_schemas": [{"short_name": "rawcore", "schema_name": "kept"}],
            "target_datasets": [dataset],
            "hash_profile": "strict_v2",
        }
        (FOLDER / f"{name}.yaml").write_text(json.dumps(model), "utf-8")
        if copy["csv"] is None:
            self.source.put(case, copy)
        else:
            (FOLDER / f"{name}.csv").write_text(copy["csv"], "utf-8")
        at = FIRST + timedelta(milliseconds=copy["at"] if copy["at"] is not None else number * 86_400_000)
        done = self.warehouse.historize(
            FOLDER / f"{name}.yaml", run_id=f"{name}-{number}", load_timestamp=at, max_delete_ratio=1.0
        )
        for receipt in done:
            if receipt.error is not None:
                raise RuntimeError(receipt.error)

    def rows(self, case):
        stored = f"backstory.kept.{table(case)}_hist"
        return self.source.rows(case, stored, "version_started_at", "version_ended_at")


run(Model())
