"""Values as another type on Spark: a float is the number that its shortest text shows, as on the driver."""

from functools import reduce
from typing import TYPE_CHECKING, Final

from backstory.spark.versions import try_cast

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# So many digits tell every float of 32 bits from all others.
_DIGITS: Final = 9


def cast_as_shown(value: "Column", found: "DataType", wanted: "DataType | str") -> "Column":
    """The value as the wanted type; 72.1 of 32 bits is 72.1 of 64 bits, not 72.0999984741211."""
    from pyspark.sql.types import DoubleType, FloatType

    if not (isinstance(found, FloatType) and wanted in {DoubleType(), "double"}):
        return value.cast(wanted)
    return _shortest(value)


def _shortest(single: "Column") -> "Column":
    """The nearest number of the fewest digits that is this float; Java's own texts depend on its release."""
    from pyspark.sql.functions import format_string, when

    wide = single.cast("double")
    digits = reversed(range(_DIGITS))
    # The text of NULL is no number.
    numbers = [try_cast(format_string(f"%.{each}e", wide), "double") for each in digits]
    return reduce(
        lambda longer, number: when(number.cast("float") == single, number).otherwise(longer), numbers, wide
    )
