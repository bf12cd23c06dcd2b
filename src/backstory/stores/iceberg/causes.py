"""The first line of what went wrong in Java or in Spark, without what may be of rows, paths or logins."""

import re
from typing import TYPE_CHECKING, Any, Final

from backstory.spark.versions import condition_of

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

LONGEST: Final = 160
# What stands in quotes, and a number of three digits or more, may be a value. Folders may be named by values,
# and addresses may hold logins.
_TEXTS: Final = re.compile(r"\"[^\"]*\"?|'[^']*'?|`[^`]*`?")
_PLACES: Final = re.compile(r"\S*[/\\@?&=]\S*")
_NUMBERS: Final = re.compile(r"\S*\d{3,}\S*")
# Of these the name alone is told: their words are about values.
_OF_VALUES: Final = re.compile(r"Number|Arithmetic|Date|IllegalState|Spark|Overflow")
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Invalid)): ", re.MULTILINE)


def first_line(name: str, text: str | None) -> str:
    """`Name: first line`, with an ellipsis for each part that may be a value."""
    lines = "" if _OF_VALUES.search(name) else (text or "").strip()
    told = lines.splitlines()[0] if lines else ""
    for values in (_TEXTS, _PLACES, _NUMBERS):
        told = values.sub("…", told)
    told = " ".join(told.split())
    return f"{name}: {told[:LONGEST]}" if re.search(r"\w", told) else name


def spark_cause(fault: "PySparkException") -> str:
    """What Spark names its error by; of one in a Python worker its class."""
    raised = _RAISED.findall(str(fault))
    name = condition_of(fault) or type(fault).__name__
    return f"{name}: {raised[-1]}" if raised and "Traceback" in str(fault) else name


def root_cause(fault: Any) -> str:
    """The same of the innermost cause of one of Java's exceptions."""
    while (cause := fault.getCause()) is not None:
        fault = cause
    return first_line(str(fault.getClass().getSimpleName()), fault.getMessage())
