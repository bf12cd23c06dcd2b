"""The command `export`: the whole history of a table as one file."""

from pathlib import Path

from backstory.cli.asking import answer_from_files, opened
from backstory.cli.options import Flag, Options
from backstory.cli.output import console, show_one
from backstory.cli.starting import busy
from backstory.reading.timelines import Axis

DEFAULTS = Options()


def export(
    table: str,
    file: Path,
    *,
    axis: Axis = "valid",
    overwrite: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Write the whole history of a table into one file, CSV or Parquet by its ending.

    Every version with valid_from and valid_to, in the order of the key. --axis both adds every earlier
    statement, with known_from and known_to. A table without history is exported as its rows. The file appears
    only when complete; if the command is killed, an existing file stays unchanged.

    Example: `backstory export crm.customer customer.parquet --axis both`

    Args:
        table: The table, as schema.table.
        file: The file, which ends in .csv or .parquet.
        axis: valid: when it was true. both: also when it was known.
        overwrite: Replace an existing file.
        options: Common options.
    """
    from backstory.reading.arrow.export import export as export_small
    from backstory.reading.exports import Place

    place = Place(file, axis, overwrite)
    done = answer_from_files(options, table, lambda files: export_small(files, place))
    if done is None:
        with opened(options, table) as store, busy(options, "Writing ..."):
            done = store.table(table).export(file, axis=axis, overwrite=overwrite)
    if options.answer == "table":
        console.print(f"{done.table}: {done.rows} rows in {done.file}", markup=False)
    else:
        show_one(done.to_dict(), options.answer, wide=options.wide)
