"""`backstory relocate`: make a copied or moved warehouse whole."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from backstory.cli.options import Flag, Options
from backstory.cli.outcomes import DRY
from backstory.cli.output import console, show_one
from backstory.cli.starting import starting

DEFAULTS = Options()


def relocate(
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Make a warehouse whole whose folder was copied or moved; until then its tables are refused.

    Iceberg writes whole paths, so the tables of a copy still name the files of the original. Their metadata
    are written anew for this folder: every snapshot, branch, tag and cursor, and what hides rows. Files of
    rows stay as they are. All tables are made whole, or none; after a kill, run it again. Nothing outside
    the folder is touched, and tables that were put elsewhere on purpose stay there. Java is started, Spark
    is not.

    Example: `backstory relocate --warehouse /backup/warehouse`

    Args:
        from_: The folder where the warehouse stood before; by default what it remembers.
        dry_run: Check that every file is there, say what would be done, and change nothing.
        options: Common options.
    """
    from backstory.upkeep.relocating import relocate as make_whole

    with starting(options):
        done = make_whole(
            options.warehouse,
            from_=from_,
            config=options.config,
            dry_run=dry_run,
            verbose=options.verbose,
        )
    if options.answer != "table":
        show_one(done.to_dict(), options.answer)
        return
    if not done.former:
        console.print(f"{done.warehouse} stands where its tables are: nothing to do.", markup=False)
        return
    word = "would be made whole" if dry_run else "made whole"
    console.print(f"{done.warehouse}: {word}, formerly {', '.join(done.former)}", markup=False)
    counts = f"{len(done.tables)} tables, {len(done.views)} views, {done.files} files of metadata"
    console.print(f"  {counts} {'to be written' if dry_run else 'written'}", markup=False)
    if dry_run:
        console.print(DRY)
