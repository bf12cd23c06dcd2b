"""backstory's native tables; the broken file is given as a file, as users have it."""

from datetime import timedelta

from in_warehouse import FIRST, Kept
from telling import FOLDER, run, table


class Native(Kept):
    """`warehouse.snapshot` of each copy."""

    def bring(self, case, copy, number):
        at = copy["at"] if copy["at"] is not None else number * 86_400_000
        options = {**case["options"], "at": FIRST + timedelta(milliseconds=at), "max_delete_ratio": 1.0}
        if copy["csv"] is not None:
            source = FOLDER / f"{table(case)}.csv"
            source.write_text(copy["csv"], "utf-8")
        else:
            self.source.put(case, copy)
            source = self.warehouse.spark.table(f"backstory.src.{table(case)}")
        self.warehouse.snapshot(source, into=f"kept.{table(case)}", key=case["key"], **options)

    def rows(self, case):
        stored = f"backstory.kept.{table(case)}"
        return self.source.rows(case, stored, "valid_from", "valid_to", "NOT (valid_to <=> valid_from)")


run(Native())
