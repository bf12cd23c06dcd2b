"""backstory's native tables: snapshots of copies, or of the broken file itself, and applied feeds."""

from datetime import UTC, datetime, timedelta

from in_warehouse import FIRST, Kept
from telling import FOLDER, run, table


class Native(Kept):
    """Run `warehouse.snapshot` for each copy, and `warehouse.apply` for each delivery of a feed."""

    def bring(self, case, copy, number):
        if case["feed"] is not None:
            self.feed(case, copy)
            return
        at = copy["at"] if copy["at"] is not None else number * 86_400_000
        options = {**case["options"], "at": FIRST + timedelta(milliseconds=at), "max_delete_ratio": 1.0}
        if copy["csv"] is not None:
            source = FOLDER / f"{table(case)}.csv"
            source.write_text(copy["csv"], "utf-8")
        else:
            self.source.put(case, copy)
            source = self.warehouse.spark.table(f"backstory.src.{table(case)}")
        self.warehouse.snapshot(source, into=f"kept.{table(case)}", key=case["key"], **options)

    def feed(self, case, copy):
        self.source.put(case, copy)
        source = self.warehouse.spark.table(f"backstory.src.{table(case)}")
        given = {"into": f"kept.{table(case)}", "key": case["key"]}
        if copy["full_at"] is not None:
            at = datetime.fromisoformat(copy["full_at"]).replace(tzinfo=UTC)
            self.warehouse.snapshot(source, at=at, max_delete_ratio=1.0, **given)
            return
        told = {"apply_as_deletes": "op = 'delete'", "unmodified": "__same__", "drop": ["op"]}
        self.warehouse.apply(source, sequence_by="updated", **told, **given)

    def rows(self, case):
        stored = f"backstory.kept.{table(case)}"
        return self.source.rows(case, stored, "valid_from", "valid_to", "NOT (valid_to <=> valid_from)")


run(Native())
