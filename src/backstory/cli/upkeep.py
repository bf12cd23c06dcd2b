"""What keeps tables in good order: `rewind`, `forget`, `maintain`, `drop`, `doctor`.

`backstory relocate`: let a copied or moved warehouse use its own files.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from backstory.cli.answers import open_warehouse
from backstory.cli.options import NO_REMARK, Flag, Options, RemarkFlags, parse_key, require_key
from backstory.cli.output import (
    NOTHING_WRITTEN,
    console,
    drop_idle_columns,
    print_error,
    show,
    show_document,
    show_one,
)
from backstory.cli.progress import show_activity, show_start
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.receipt import exit_code
from backstory.model.values import key_text
from backstory.settings import CATALOG

DEFAULTS = Options()
MAINTENANCE_COLUMNS = (
    "table",
    "files",
    "files_after",
    "bytes_rewritten",
    "snapshots_expired",
    "rows_settled",
)
# A rewind's rows by outcome, done and planned.
REWOUND_ROWS = {"taken_back": "taken back", "moved": "moved", "returned": "returned"}
ROWS_TO_REWIND = {"taken_back": "to take back", "moved": "to move", "returned": "to return"}
USE_APPLY = "Nothing was written. Use --apply to go ahead."


def rewind(
    table: str,
    time: str,
    *,
    apply: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> None:
    """Undo everything a table learned after a time.

    Without --apply it only shows what would be undone. The time is when the table learned something, not
    when that was true: recorded time in a native table, system time in a dataset, commits in any other table.
    A native table still knows what it held in between (as-of --known-at), and a rewind can be undone by
    another one. A history is rewound together with its base.

    Example: `backstory rewind crm.customer 2026-03-01 --apply`

    Args:
        table: The table, as schema.table, or a dataset's name.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        apply: Go ahead.
        remark: The note and the author of the commit.
        options: Common options.
    """
    when = parse_instant(time)
    with (
        open_warehouse(options, table) as store,
        show_activity(options, "Reading what the table learned ..."),
    ):
        done = store.table(table).rewind(when, apply=apply, **remark.arguments()).to_dict()
    if options.answer != "table":
        show_one(done, options.answer, wide=options.wide)
        return
    for each in (done, *done["also"]):
        words = ROWS_TO_REWIND if not each["applied"] else REWOUND_ROWS
        rows = ", ".join(f"{words[name]} {count}" for name, count in each["counts"].items() if count)
        count = len(each["commits"])
        deed = f"{'undid' if each['applied'] else 'would undo'} {count} commit{'' if count == 1 else 's'}"
        told = f"{deed}; rows: {rows}" if rows else "nothing to undo"
        console.print(f"{each['table']}: {told}", markup=False)
        if each["keys"]:
            keys = (key_text(list(key), list(key.values())) for key in each["keys"])
            console.print(f"  keys: {', '.join(keys)}", markup=False)
    if not apply:
        console.print(USE_APPLY)


def forget(
    table: str,
    *key: str,
    drop_cursors: Flag = False,
    apply: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> None:
    """Erase a record from all versions, snapshots and files of a table, and print a certificate.

    Without --apply it only searches for the record. The record is erased from data files, manifests (whose
    bounds are clear text), statistics and old metadata; every snapshot but the newest expires. A history, its
    base and its archive forget together; an event log cannot forget. A record that the source still has
    returns with the next delivery: delete it there first, and let no other program write to the table
    meanwhile.

    Only files that are proven to be the table's own are deleted. The certificate names all others that hold
    the record. Consumers of changes are not notified.

    Example: `backstory forget crm.customer 42 --apply`

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        drop_cursors: Drop the cursors of consumers that have not read everything.
        apply: Go ahead.
        remark: The note and the author of the commit.
        options: Common options.
    """
    require_key(key)
    with open_warehouse(options, table) as store, show_activity(options, "Searching the table's files ..."):
        found = store.table(table)
        record = parse_key(found, key)
        done = found.forget(record, drop_cursors=drop_cursors, apply=apply, **remark.arguments()).to_dict()
    if options.answer != "table":
        show_one(done, options.answer, wide=options.wide)
        return
    certificates = (done, *done["also"])
    if all(each["status"] == "no-record" for each in certificates):
        files = sum(each["searched"].get("files", 0) for each in certificates)
        console.print(f"{done['table']}: no such record; searched: {files} files", markup=False)
        return
    for each in certificates:
        rows = ", ".join(f"{role} {count}" for role, count in each["rows"].items()) or "no rows"
        word = "forgotten" if each["applied"] else "not forgotten"
        console.print(f"{each['table']}: {word}: {rows}; files {each['files_rewritten']}", markup=False)
        gone = {name: len(each[f"{name}_deleted"]) for name in ("files", "metadata", "statistics")}
        deleted = ", ".join(f"{count} {name}" for name, count in gone.items())
        searched, left = each["searched"].get("files", 0), len(each["left"] or ()) or "nothing"
        console.print(f"  deleted: {deleted}; searched: {searched} files; left: {left}", markup=False)
        for one in each["left"] or ():
            console.print(f"    {one}", markup=False)
        if each["consumers"]:
            console.print(f"  copies of consumers keep it: {', '.join(each['consumers'])}", markup=False)
    console.print(f"sha256 {done['sha256']}" if apply else USE_APPLY, markup=False)


def maintain(
    *tables: str,
    all: Flag = False,  # noqa: A002 - the option's name
    settle_before: str | None = None,
    known_from: str | None = None,
    dry_run: Flag = False,
    remark: RemarkFlags = NO_REMARK,
    options: Options = DEFAULTS,
) -> int:
    """Compact small files and expire old snapshots; queries give the same answers as before.

    Rows keep their ids; deleted rows are removed from the files. Snapshots are kept for 30 days (or for the
    table's history.expire.max-snapshot-age-ms), and longer if a cursor, a tag, a branch or a run that no log
    records needs them. Cursors are kept for backstory.cursor-max-age (30 days). A file outside the table's
    folder is never deleted; those that nothing needs any more are named.

    Example: `backstory maintain --all --dry-run`

    Args:
        tables: Tables, as schema.table.
        all: Every table of the warehouse.
        settle_before: Delete what native tables remember for late copies and changes up to this time; older
            ones are refused from then on.
        known_from: Delete what native tables knew before this time; as-of --known-at then starts there.
        dry_run: Show what would be done, and change nothing.
        remark: The note and the author of the commit.
        options: Common options.
    """
    from backstory.stores.refusals import require_some

    require_some(tables, every=all)
    before, since = optional_instant(settle_before), optional_instant(known_from)
    with open_warehouse(options, *tables) as store, show_activity(options, "Maintaining tables ..."):
        done = store.maintain(
            *tables,
            all=all,
            settle_before=before,
            known_from=since,
            dry_run=dry_run,
            **remark.arguments(),
        )
    found = [each.to_dict() for each in done]
    if options.answer != "table":
        show(found, options.answer, () if found else MAINTENANCE_COLUMNS)
    else:
        columns = drop_idle_columns(MAINTENANCE_COLUMNS, found, ("rows_settled",))
        show([{name: each[name] for name in columns} for each in found], "table", columns)
        for each in found:
            if each["error"]:
                print_error(each["error"], f"{each['table']}: ")
            if each["left"]:
                count = len(each["left"])
                what = "files outside the table's folder are not needed any more and were not deleted"
                console.print(f"{each['table']}: {count} {what}:", markup=False)
                for one in each["left"]:
                    console.print(f"  {one}", markup=False)
            if each["propose_settle_before"]:
                share, time = each["memory_share"], each["propose_settle_before"]
                console.print(f"{each['table']}: {share:.0%} is memory; consider --settle-before {time}")
        if dry_run:
            console.print(NOTHING_WRITTEN)
    return exit_code(done)


def drop(table: str, *, archive: str | None = None, apply: Flag = False, options: Options = DEFAULTS) -> None:
    """End a history: delete the table with its files, or keep it under another name, read only.

    Without --apply it only shows what would be deleted or renamed. An archived history answers every reading
    command, and refuses every delivery; forget and maintain still work. A later delivery to the old name
    begins a new table.

    Example: `backstory drop crm.customer --archive customer_until_2026 --apply`

    Args:
        table: The table, as schema.table.
        archive: Keep the history under this name, schema.table or a name in the same schema.
        apply: Go ahead.
        options: Common options.
    """
    with open_warehouse(options, table) as store, show_activity(options, "Looking at the table ..."):
        done = store.table(table).drop(archive=archive, apply=apply).to_dict()
    if options.answer != "table":
        show_one(done, options.answer, wide=options.wide)
        return
    word = "archived as" if done["archive"] else "dropped"
    deed = f"{word if apply else f'would be {word}'}{' ' + done['archive'] if done['archive'] else ''}"
    console.print(
        f"{done['table']}: {deed}; {done['rows']} rows, {done['snapshots']} snapshots", markup=False
    )
    if done["cursors"]:
        console.print(f"  cursors: {', '.join(done['cursors'])}", markup=False)
    if not apply:
        console.print(USE_APPLY)


def doctor(*, catalog: str = CATALOG, options: Options = DEFAULTS) -> int:
    """Try what a session and a catalog can do, on a scratch table that is removed again.

    It prints the versions of everything, and for each ability whether it works. A report of a problem begins
    with this. The exit code is 1 if something does not work.

    Example: `backstory doctor --output json`

    Args:
        catalog: The catalog of the configuration that is examined.
        options: Common options.
    """
    with open_warehouse(options, catalog=catalog) as store, show_activity(options, "Trying each ability ..."):
        found = store.doctor()
    told = found.to_dict()
    if options.answer == "json":
        show_document(told)
    elif options.answer == "csv":
        show(told["abilities"], "csv")
    else:
        show_one(told["versions"], options.answer, wide=options.wide)
        rows = [{**each, "error": each["error"] and each["error"]["message"]} for each in told["abilities"]]
        columns = ["ability", "status", "seconds", "error"]
        show(rows, options.answer, drop_idle_columns(columns, rows, ("error",)), wide=options.wide)
    return found.exit_code


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

    with show_start(options):
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
        console.print(NOTHING_WRITTEN)
