"""`backstory send`: play Fivetran's part."""

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from backstory.cli.file_flags import FileFlags
from backstory.cli.flags import in_flags
from backstory.cli.options import Flag, Options
from backstory.cli.output import console, show
from backstory.formats.wrapping.batch_file import Compression, Encoding, Format
from backstory.model.instant import parse_instant

DEFAULTS = Options()
AS_EXPECTED = FileFlags()


def send(
    before: Path,
    after: Path,
    *,
    to: str,
    schema: str,
    table: str,
    key: str,
    history: Flag = False,
    at: str | None = None,
    format: Format = Format.CSV,  # noqa: A002 - the option's name
    compression: Compression = Compression.ZSTD,
    encryption: Literal["aes", "none"] = "aes",
    files: FileFlags = AS_EXPECTED,
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Send the difference between two full copies to a destination, as one batch.

    The table is created if it is missing, and missing columns are added. Use an empty file as BEFORE to
    send everything. The same pair sent again is the same batch, with the same times: the destination
    recognises it and commits nothing (recognised), unless it has taken another one since.

    Args:
        before: The older copy: a CSV, Parquet or JSON file, packed or not.
        after: The newer copy.
        to: Destination, as host:port.
        schema: Schema of the table.
        table: Name of the table.
        key: Key columns, separated by commas.
        history: Send a history batch, for a table that keeps history.
        at: The time when the source changed, ISO 8601. Default: when the pair was first sent.
        format: Format of the batch files; the destination's --batch-format must be the same.
        compression: Compression of the batch files.
        encryption: Encryption of the batch files.
        files: How BEFORE and AFTER are written.
        dry_run: Print what would be sent, and send nothing.
        options: Common options.
    """
    from backstory.formats.file_columns import comma_notes
    from backstory.testing.sender.batch_files import NULL_STRING, UNMODIFIED_STRING
    from backstory.testing.sender.client import Sender, text_columns
    from backstory.testing.sender.copies import difference, read_copy
    from backstory.testing.sender.sent import SentBatches, pair_of

    names = [name.strip() for name in key.split(",")]
    time = parse_instant(at) if at else None
    written = files.options()
    encoding = Encoding(format, compression, encryption == "aes", NULL_STRING, UNMODIFIED_STRING)
    recognised = False
    with tempfile.TemporaryDirectory(prefix="backstory-send-") as folder:
        sender = Sender.to(to, Path(folder), encoding=encoding)
        texts = text_columns(None if dry_run else sender.describe(schema, table))
        newer, older = (read_copy(each, names, texts, written) for each in (after, before))
        notes = [in_flags(each).replace("`", "") for each in comma_notes(newer.with_commas)]
        if dry_run:
            rows = difference(older, newer, time or datetime.now(UTC), history=history)
        else:
            definition = sender.prepare(schema, table, newer, history=history)
            texts = text_columns(definition)  # of a table that is new they are told only now
            newer, older = (read_copy(each, names, texts, written) for each in (after, before))
            sent = SentBatches.of(to, schema, table)
            pair = pair_of((before, after), names, time, history, encoding)
            batch = sent.batch(pair, time)
            rows, recognised = difference(older, newer, batch.time, history=history), batch.taken
            if not rows.empty:
                replace(sender, secret=batch.secret).write(schema, definition, rows)
                sent.mark_taken(pair)
    answer = {
        "table": f"{schema}.{table}",
        "sent": not dry_run and not rows.empty,
        "recognised": recognised and not rows.empty,
        "replace": len(rows.replace),
        "update": len(rows.update),
        "delete": len(rows.delete),
        "repeated_keys": [list(repeated) for repeated in newer.repeated],
    }
    if options.answer != "table":
        answer["notes"] = notes
    show([answer], options.answer)
    for each in notes if options.answer == "table" else ():
        console.print(each, markup=False)
