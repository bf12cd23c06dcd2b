"""The secret that goes into every key (section 1.1): it is never stored, printed or part of a plan."""

import os

from backstory.errors import UsageError


def find_pepper(environment: str) -> str:
    """BACKSTORY_PEPPER, else ELEVATA_PEPPER, else SEC_<ENVIRONMENT>_PEPPER; UsageError without any."""
    names = ["BACKSTORY_PEPPER", "ELEVATA_PEPPER", f"SEC_{environment.upper()}_PEPPER"]
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    raise UsageError(
        "no-pepper",
        "No pepper is set, and every key needs one.",
        f"Set {names[0]} (or {', '.join(names[1:])}).",
    )
