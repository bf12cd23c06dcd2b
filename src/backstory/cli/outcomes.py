"""How people read the outcome of datasets: a line for each, and a summary."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from backstory.cli.output import console, tell_error, tell_line
from backstory.model.instant import iso

if TYPE_CHECKING:
    from backstory.doors.odf.door import Added, DatasetReceipt
    from backstory.engine.rehearsal import Told

OPS = (("+A", "appended"), ("-C/+C", "corrected"), ("-R", "retracted"))
OTHERS = ("unchanged", "conflicts", "late")
ADDED = {
    "added": "Added: {0}",
    "updated": "Updated: {0}",
    "unchanged": "Skipped: {0}: Already exists",
    "failed": "Failed: {0}",
}
SUMMARY = {
    "updated": "{0} dataset(s) updated",
    "up-to-date": "{0} dataset(s) up-to-date",
    "uncacheable": "{0} dataset(s) uncacheable",
    "disabled": "{0} dataset(s) without a source to ask",
    "failed": "Failed to update {0} dataset(s)",
}
DRY = "Dry run: nothing was written."


def tell_receipt(receipt: "DatasetReceipt") -> None:
    """Print a dataset's line, and what went wrong with it."""
    console.print(line_of(receipt), markup=False)
    if receipt.error is not None:
        tell_error(receipt.error.to_dict(), f"{receipt.dataset}: ")


def line_of(receipt: "DatasetReceipt") -> str:
    """`cities: updated  +A 3  -C/+C 1  (2 unchanged)  offsets 4 to 8  watermark ...`."""
    counts = receipt.counts
    others = ", ".join(f"{counts[name]} {name}" for name in OTHERS if counts[name])
    parts = [
        f"{receipt.dataset}: {receipt.status}",
        *(f"{symbol} {counts[name]}" for symbol, name in OPS if counts[name]),
        f"({others})" if others else "",
        f"({receipt.hint})" if receipt.hint else "",
        "offsets {} to {}".format(*receipt.offsets) if receipt.offsets else "",
        _watermarks(receipt) if receipt.status == "updated" else "",
    ]
    return "  ".join(filter(None, parts))


def _watermarks(receipt: "DatasetReceipt") -> str:
    before, after = receipt.before, receipt.watermark
    if after is None:
        return ""
    return f"watermark {short(after)}" if before == after else f"watermark {short(before)} -> {short(after)}"


def short(instant: datetime | str | None) -> str:
    """An instant to the second; `none` if there is none."""
    if instant is None:
        return "none"
    return f"{(instant if isinstance(instant, str) else iso(instant))[:19]}Z"


def tell_summary(receipts: Sequence["DatasetReceipt"], *, dry_run: bool) -> None:
    """Print how many datasets ended how."""
    counts: Counter[str] = Counter(receipt.status for receipt in receipts)
    for status, text in SUMMARY.items():
        if counts[status]:
            console.print(text.format(counts[status]))
    if not receipts:
        console.print("There are no datasets. Add one with `backstory add MANIFEST`.")
    if dry_run:
        console.print(DRY)


def tell_changes(changes: "Told") -> None:
    """Print what a dry run would have committed, table by table."""
    for table, lines in changes:
        console.print(f"{table}: {'; '.join(lines)}", markup=False)


def tell_added(added: "Added") -> None:
    """Print what became of a manifest."""
    console.print(ADDED[added.status].format(added.dataset or added.file), markup=False)


def tell_lints(all_added: Iterable["Added"]) -> None:
    """Print what the lints say of manifests, on standard error."""
    for added in all_added:
        for lint in added.lints:
            tell_line(f"{lint.level} {lint.code}: {lint.place}: {lint.message}. {lint.remedy}".rstrip())
