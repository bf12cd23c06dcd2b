"""`backstory relocate`: let a copied or moved warehouse use its own files."""

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
    """Relocate a warehouse whose folder was copied or moved; until then its tables are refused.

    Iceberg stores absolute paths, so the tables of a copy still name the files of the original. Their
    metadata is rewritten for this folder: every snapshot, branch, tag and cursor, and the files that hide
    rows. Data files stay as they are. All tables are relocated, or none; after a kill, run it again. Nothing
    outside the folder is touched, and what was put elsewhere on purpose stays there: the answer names the
    tables that have files outside the folder. Java is started, Spark is not.

    Example: `backstory relocate --warehouse /backup/warehouse`

    Args:
        from_: The former folder; by default what the warehouse remembers.
        dry_run: Check that every file exists, print what would be done, and change nothing.
        options: Common options.
    """
    from backstory.upkeep.relocating import relocate as relocate_all

    with starting(options):
        done = relocate_all(
            options.warehouse,
            from_=from_,
            config=options.config,
            dry_run=dry_run,
            verbose=options.verbose,
        )
    if options.answer != "table":
        show_one(done.to_dict(), options.answer, wide=options.wide)
        return
    if not done.former:
        console.print(f"{done.warehouse} is where its tables are: nothing to do.", markup=False)
        return
    word = "would be relocated" if dry_run else "relocated"
    console.print(f"{done.warehouse}: {word} from {', '.join(done.former)}", markup=False)
    counts = f"{len(done.tables)} tables, {len(done.views)} views, {done.files} files of metadata"
    console.print(f"  {counts} {'to be written' if dry_run else 'written'}", markup=False)
    for each in done.warnings:
        console.print(f"  {each}", markup=False)
    if dry_run:
        console.print(DRY)
