"""How a column's type may change (section 4.3)."""

from backstory.model.types import ColumnType, Kind, fits
from backstory.stores.sql.columns import Datatype, SqlColumn

EQUAL, WIDENING, OTHER = "equal", "widening", "other"


def drift(old: SqlColumn, new: SqlColumn) -> str:
    """Whether every value of the old type is one of the new: equal, widening, or other.

    DECIMAL(p1,s1) widens to DECIMAL(p2,s2) if neither its fraction nor its whole digits get fewer;
    DECIMAL never becomes FLOAT in a history.
    """
    if old.datatype is new.datatype:
        match old.datatype:
            case Datatype.DECIMAL:
                return _decimal(old, new)
            case Datatype.STRING:
                return _length(old.max_length, new.max_length)
        return EQUAL
    wider = {(Datatype.INTEGER, Datatype.BIGINT), (Datatype.DATE, Datatype.TIMESTAMP)}
    return WIDENING if (old.datatype, new.datatype) in wider else OTHER


def _length(old: int | None, new: int | None) -> str:
    if old == new:
        return EQUAL
    return WIDENING if new is None or (old is not None and old < new) else OTHER


def _decimal(old: SqlColumn, new: SqlColumn) -> str:
    old_type, new_type = (
        ColumnType(Kind.DECIMAL, each.decimal_precision or 38, each.decimal_scale or 0) for each in (old, new)
    )
    if old_type == new_type:
        return EQUAL
    return WIDENING if fits(old_type, new_type) else OTHER
