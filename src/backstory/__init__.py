"""backstory: every version of every record, on Spark."""

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError, Violated

__all__ = ["BackstoryError", "Failed", "Refused", "TryAgain", "UsageError", "Violated"]
