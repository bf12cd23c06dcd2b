"""What keeps tables in good order: `rewind`, `forget`, `maintain`."""

from backstory.cli.asking import opened
from backstory.cli.keys import key_given, require_key
from backstory.cli.options import Flag, Options
from backstory.cli.outcomes import DRY
from backstory.cli.output import console, show, show_one, tell_error, without_idle
from backstory.cli.starting import busy
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.keys import told_key
from backstory.model.receipt import exit_code

DEFAULTS = Options()
SHOWN = ("table", "files", "files_after", "bytes_rewritten", "snapshots_expired", "rows_settled")
AGAIN = "Nothing was written; say --apply to do it."


def rewind(table: str, time: str, *, apply: Flag = False, options: Options = DEFAULTS) -> None:
    """Take back what a table learnt after a time; without --apply only tell what would go.

    It goes by what was learnt, not by validity: of a native table by its own recorded time, of a dataset by
    its system time, of any other table by its commits. On a native table what was believed in between stays
    known (as-of --known-at), and a rewind can be taken back by a rewind. A history goes back together with
    its base.

    Example: `backstory rewind crm.customer 2026-03-01 --apply`

    Args:
        table: The table, as schema.table, or a dataset's name.
        time: ISO 8601; UTC without an offset, a date is its first instant.
        apply: Do it.
        options: Common options.
    """
    when = parse_instant(time)
    with opened(options, table) as store, busy(options, "Reading what was learnt ..."):
        done = store.table(table).rewind(when, apply=apply).to_dict()
    if options.answer != "table":
        show_one(done, options.answer)
        return
    for each in (done, *done["also"]):
        said = (f"{count} {name.replace('_', ' ')}" for name, count in each["counts"].items() if count)
        rows = ", ".join(said)
        word = "taken back" if each["applied"] else "to take back"
        told = f"commits {word}: {len(each['commits'])}; {f'rows: {rows}' if rows else 'nothing changes'}"
        console.print(f"{each['table']}: {told}")
        if each["keys"]:
            keys = (told_key(list(key), list(key.values())) for key in each["keys"])
            console.print(f"  keys: {', '.join(keys)}", markup=False)
    if not apply:
        console.print(AGAIN)


def forget(
    table: str, *key: str, drop_cursors: Flag = False, apply: Flag = False, options: Options = DEFAULTS
) -> None:
    """Remove a record from every version, old snapshots and files included, and print the certificate.

    Without --apply the record is only looked for. It goes out of data files, of manifests (whose bounds are
    clear text), of statistics and of former metadata; every snapshot but the newest expires. Of a history the
    base and the archive forget it too; an event log cannot. What a source still has comes again with its next
    delivery: take it out there first, and let no other program write to the table meanwhile.

    Nothing is deleted that is not proven to be the table's own: files elsewhere, or of unknown origin, that
    hold the record stay, and the certificate names them. Consumers of changes are not told of it.

    Example: `backstory forget crm.customer 42 --apply`

    Args:
        table: The table, as schema.table.
        key: The key's value, or name=value for each column of a key of several.
        drop_cursors: Drop the cursors of consumers that have not read all that came.
        apply: Do it.
        options: Common options.
    """
    require_key(key)
    with opened(options, table) as store, busy(options, "Searching the table's files ..."):
        found = store.table(table)
        done = found.forget(key_given(found, key), drop_cursors=drop_cursors, apply=apply).to_dict()
    if options.answer != "table":
        show_one(done, options.answer)
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
    console.print(f"sha256 {done['sha256']}" if apply else AGAIN, markup=False)


def maintain(
    *tables: str,
    all: Flag = False,  # noqa: A002 - the option's name
    settle_before: str | None = None,
    known_from: str | None = None,
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Compact small files, and let old snapshots expire; no answer changes.

    Rows keep their ids, and what hides rows in files goes. Snapshots stay for 30 days (or as long as the
    table's history.expire.max-snapshot-age-ms says), and longer where a cursor, a tag or a branch, or a run
    that no log tells of needs them; cursors for backstory.cursor-max-age (30 days).

    Example: `backstory maintain --all --dry-run`

    Args:
        tables: Tables, as schema.table.
        all: Every table of the warehouse.
        settle_before: Settle what native tables remember up to this time: nothing so old can come late.
        known_from: Prune what native tables knew before this time; as-of --known-at then starts there.
        dry_run: Say what would be done, and change nothing.
        options: Common options.
    """
    from backstory.stores.refusals import require_some

    require_some(tables, every=all)
    before, since = optional_instant(settle_before), optional_instant(known_from)
    with opened(options, *tables) as store, busy(options, "Looking after tables ..."):
        done = store.maintain(*tables, all=all, settle_before=before, known_from=since, dry_run=dry_run)
    found = [each.to_dict() for each in done]
    if options.answer != "table":
        show(found, options.answer, () if found else SHOWN)
    else:
        columns = without_idle(SHOWN, found, ("rows_settled",))
        show([{name: each[name] for name in columns} for each in found], "table", columns)
        for each in found:
            if each["error"]:
                tell_error(each["error"], f"{each['table']}: ")
            if each["propose_settle_before"]:
                share, time = each["memory_share"], each["propose_settle_before"]
                console.print(f"{each['table']}: {share:.0%} is memory; consider --settle-before {time}")
        if dry_run:
            console.print(DRY)
    return exit_code(done)
