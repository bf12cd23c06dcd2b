"""How the receipts of native tables are printed."""

from typing import Any

from backstory.cli.flags import in_flags
from backstory.cli.options import Options
from backstory.cli.outcomes import DRY
from backstory.cli.output import console, show_one


def show_receipt(receipt: dict[str, Any], options: Options, *, dry_run: bool) -> None:
    """Print a receipt, or the plan of a dry run; options in it are flags."""
    receipt = {
        **receipt,
        "schema_changes": [in_flags(each).replace("`", "") for each in receipt["schema_changes"]],
    }
    if options.answer == "table":
        receipt |= {name: _lines(receipt[name]) for name in ("keys", "columns") if name in receipt}
    show_one(receipt, options.answer, wide=options.wide)
    if dry_run and options.answer == "table":
        console.print(DRY)


def _lines(by_name: dict[str, Any]) -> list[str]:
    """A line for each outcome or column that has something."""
    return [
        f"{name}: {', '.join(map(str, each)) if isinstance(each, list) else each}"
        for name, each in by_name.items()
        if each
    ]
