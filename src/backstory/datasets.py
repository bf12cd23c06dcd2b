"""The Python face of Open Data Fabric datasets: what a warehouse does with them."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.model.instant import optional_instant
from backstory.model.table import ODF

Files = str | Path | Sequence[str | Path]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.doors.odf.door import Added, DatasetReceipt, Inspected, Verdict, Watcher
    from backstory.settings import Rights
    from backstory.stores.iceberg.store import Store


class Datasets:
    """The datasets of a warehouse."""

    store: "Store"
    rights: "Rights"

    def add(self, files: Files, *, namespace: str = ODF, dry_run: bool = False) -> "list[Added]":
        """Register the datasets of manifests: files, or folders with files in them.

        What is wrong with one file does not keep the others back; the first error is raised at the end.
        """
        from backstory.doors.odf import door

        added = door.add_each(self.store, namespace, _paths(files), dry_run=dry_run)
        for each in added:
            if each.error is not None:
                raise each.error
        return added

    def pull(
        self,
        *names_or_files: str | Path,
        all: bool = False,  # noqa: A002 - the option's name
        system_time: str | datetime | None = None,
        fetch_uncacheable: bool = False,
        refetch: bool = False,
        set_watermark: str | datetime | None = None,
        run_id: str | None = None,
        namespace: str = ODF,
        dry_run: bool = False,
        note: str | None = None,
        author: str | None = None,
        watcher: "Watcher | None" = None,
    ) -> "list[DatasetReceipt]":
        """Ask the polling sources of datasets, and ingest what is new; a receipt for each dataset.

        A file of manifests is added first. Raises UsageError for a wrong manifest or an unknown name; what
        goes wrong with a source is a receipt with an error.
        """
        from backstory.doors.odf import door
        from backstory.engine.remarks import remarked

        watcher = watcher or door.Watcher()
        asked = door.RunRequest(
            system_time=optional_instant(system_time),
            fetch_uncacheable=fetch_uncacheable,
            refetch=refetch,
            set_watermark=optional_instant(set_watermark),
            run_id=run_id,
            dry_run=dry_run,
            rights=self.rights,
            progress=watcher.progress,
        )
        with remarked(note, author):
            return door.pull_all(
                self.store, names_or_files, asked, namespace=namespace, every=all, watcher=watcher
            )

    def ingest(
        self,
        name: str,
        *files: str | Path,
        source_name: str | None = None,
        event_time: str | datetime | None = None,
        input_format: str | None = None,
        system_time: str | datetime | None = None,
        run_id: str | None = None,
        namespace: str = ODF,
        dry_run: bool = False,
        note: str | None = None,
        author: str | None = None,
        watcher: "Watcher | None" = None,
    ) -> "DatasetReceipt":
        """Push files, a commit for each; an error stands in the receipt, UsageError for an unknown name."""
        from backstory.doors.odf import door
        from backstory.engine.remarks import remarked

        pushed = door.Pushed(_paths(files), source_name, optional_instant(event_time), input_format)
        asked = door.RunRequest(
            system_time=optional_instant(system_time),
            run_id=run_id,
            dry_run=dry_run,
            rights=self.rights,
            progress=(watcher or door.Watcher()).progress,
        )
        with remarked(note, author):
            return door.ingest(self.store, name, pushed, asked, namespace=namespace)

    def datasets(self, *, namespace: str = ODF) -> list[dict[str, Any]]:
        """The Open Data Fabric datasets: source, strategy, last pull, records, blocks, watermark."""
        from backstory.doors.odf import door

        return door.listed(self.store, namespace=namespace)

    def events(self, name: str, encoding: str | None = None, *, namespace: str = ODF) -> "DataFrame":
        """The log of a dataset, as it is stored or in the encoding `op` or `observed`."""
        from backstory.doors.odf import door
        from backstory.spark.settled import hold_settings, left_to_run

        with hold_settings(self.store.session):
            return left_to_run(door.events(self.store, name, encoding, namespace=namespace))

    def inspect(self, name: str, *, namespace: str = ODF) -> "Inspected":
        """A dataset's manifest, schema, lints and head."""
        from backstory.doors.odf import door

        return door.inspect(self.store, name, namespace=namespace)

    def verify(self, name: str, *, namespace: str = ODF) -> "Verdict":
        """Whether a dataset is what its commits said: chain, log, offsets, rows and columns."""
        from backstory.doors.odf import door

        return door.verified(self.store, name, namespace=namespace)


def _paths(files: Files) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(each) for each in files]
