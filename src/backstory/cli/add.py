"""`backstory add`: register Open Data Fabric datasets."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from backstory.cli.asking import opened
from backstory.cli.options import Flag, Options
from backstory.cli.outcomes import DRY, tell_added, tell_changes, tell_lints
from backstory.cli.output import console, show, tell_error
from backstory.errors import UsageError

if TYPE_CHECKING:
    from backstory.doors.odf.door import Added
    from backstory.engine.rehearsal import Told

DEFAULTS = Options()
NEW = {"added": "Added {0} dataset(s)", "updated": "Updated {0} dataset(s)"}


def add(
    *files: Path,
    recursive: Annotated[bool, Parameter(negative="", alias="-r", show_default=False)] = False,
    namespace: str = "odf",
    dry_run: Flag = False,
    schema: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Register Open Data Fabric datasets by their manifests.

    This asks no source yet: `backstory pull` does. The new manifest of a known dataset may change its
    source and description, and add optional columns. A wrong manifest does not stop the others.

    Args:
        files: Manifests (YAML), or folders with manifests, at any depth.
        recursive: No effect: folders are always searched.
        namespace: Schema of the datasets' tables.
        dry_run: Print what would be added, and change nothing.
        schema: Print the JSON Schema of manifests, for editors, and change nothing.
        options: Common options.
    """
    from backstory.doors.odf import door
    from backstory.doors.odf.manifests import json_schema
    from backstory.engine.rehearsal import collect_rehearsals
    from backstory.model.receipt import exit_code

    _ = recursive
    if schema:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
        return 0
    if not files:
        raise UsageError("no-manifest", "No manifest is given.", "Use `backstory add MANIFEST.yaml`.")
    if len(files) == 1 and not files[0].is_dir():
        door.inspected_file(files[0])  # what is wrong is said at once, without Spark
    with opened(options) as warehouse, collect_rehearsals() as changes:
        found = door.add_each(warehouse.store, namespace, files, dry_run=dry_run)
    if len(found) == 1 and found[0].error is not None:
        raise found[0].error
    _tell(found, options, changes, dry_run=dry_run)
    return exit_code(found)


def _tell(found: "Sequence[Added]", options: Options, changes: "Told", *, dry_run: bool) -> None:
    if not options.quiet:
        tell_lints(found)
    if options.answer != "table":
        show([each.to_dict() for each in found], options.answer, () if found else ("dataset", "status"))
        return
    for each in found:
        tell_added(each)
    counts: Counter[str] = Counter(each.status for each in found)
    for status, text in NEW.items():
        if counts[status] or status == "added":
            console.print(text.format(counts[status]))
    tell_changes(changes)
    if dry_run:
        console.print(DRY)
    for each in found:
        if each.error is not None:
            tell_error(each.error.to_dict(), f"{each.file}: ")
