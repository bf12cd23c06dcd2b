"""What a load of a warehouse is refused for, judged on all of its parts (section 3.6)."""

from collections.abc import Callable

from backstory.doors.historize.columns import business_keys, user_columns
from backstory.doors.historize.preflight import KEYS_CHANGED, NO_BEGINNING, mass_delete, rejection
from backstory.doors.historize.spark_work import SparkWork
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2.parts import (
    BASE_TWICE,
    BEGINS_EARLY,
    DELETED,
    EARLIER_DATE,
    ENDS_EARLY,
    LIVE_TWICE,
    LONG,
    NEVER_BEGAN,
    NO_HASH,
    NO_KEY,
    NULL,
    OPEN_TWICE,
    STAGE_TWICE,
    compared_of,
    sampled_keys,
)
from backstory.strategies.scd2.terms import BASE, OPEN


def refuse_faults(work: SparkWork, sums: PlanSums, moved: Callable[[], list[str]]) -> None:
    """Raises Refused for what speaks against the load, with up to ten keys.

    `sums` are all parts together, `moved` gives keys of records that appear in the base while records of the
    same business keys go.
    """
    if not work.run.skip_base:
        _refuse_stage(work, sums)
        _refuse_base(work, sums, moved)
    _refuse_history(work, sums)


def _refuse_stage(work: SparkWork, sums: PlanSums) -> None:
    keys = {each.name for each in business_keys(work.load.dataset)}
    names = [each.name for each in user_columns(work.load.dataset)]
    for name in names:
        code = "NULL_KEY" if name in keys else "NULL_VALUE"
        _refuse(code, f"{name} is NULL in {{rows}} of the stage.", sums, NULL + name)
    for name in names:
        _refuse("VALUE_TOO_LONG", f"{name} is too long in {{rows}} of the stage.", sums, LONG + name)
    _refuse("DUPLICATE_KEY", "Rows of the stage share a business key.", sums, STAGE_TWICE)


def _refuse_base(work: SparkWork, sums: PlanSums, moved: Callable[[], list[str]]) -> None:
    load, dataset = work.load, work.load.dataset
    _refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", sums, BASE_TWICE)
    compared = compared_of(BASE, sums.counts)
    appeared, _, vanished, kept, _ = compared.sizes
    if appeared and (vanished or kept) and (keys := moved()):
        raise rejection("KEYS_CHANGED", KEYS_CHANGED, keys)
    whole = load.deletes_base and not load.delete_scope
    lost = whole and compared.stored and not compared.delivered
    if lost and not dataset.historization.allow_empty_snapshot:
        raise rejection("EMPTY_SNAPSHOT", f"The stage of {dataset.name} is empty.")


def _refuse_history(work: SparkWork, sums: PlanSums) -> None:
    """P1 to P4, P6 and P7."""
    dataset, rules = work.load.dataset, work.load.dataset.historization
    _refuse("NULL_KEY", f"{{rows}} of the base have no {dataset.key}.", sums, NO_KEY)
    _refuse("NULL_ROW_HASH", "{rows} of the base have no row_hash.", sums, NO_HASH)
    _refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", sums, LIVE_TWICE)
    _refuse("MULTIPLE_OPEN", "Keys have more than one open version.", sums, OPEN_TWICE)
    _refuse("spoilt-table", NO_BEGINNING, sums, NEVER_BEGAN)
    compared = compared_of(OPEN, sums.counts)
    if compared.stored and not compared.delivered and not rules.allow_empty_snapshot:
        raise rejection("EMPTY_SNAPSHOT", f"The base {dataset.name} is empty.")
    if many := mass_delete(rules, compared.sizes[2], compared.stored):
        raise rejection("MASS_DELETE", many, sampled_keys(sums, DELETED))
    if rules.effective_dating:
        dated = rules.effective_dating.column
        _refuse("LATE_EFFECTIVE", f"Changed rows have an earlier {dated} than before.", sums, EARLIER_DATE)


def refuse_late(sums: PlanSums) -> None:
    """P5: raises Refused where the history knows a later instant of a record that changes."""
    late = "Versions begin or end at or after the load's timestamp."
    for fault in (ENDS_EARLY, BEGINS_EARLY):
        _refuse("NON_MONOTONIC_TIMESTAMP", late, sums, fault)


def _refuse(code: str, told: str, sums: PlanSums, fault: str) -> None:
    if count := sums.counts.get(fault, 0):
        rows = f"{count} row{'' if count == 1 else 's'}"
        raise rejection(code, told.replace("{rows}", rows), sampled_keys(sums, fault))
