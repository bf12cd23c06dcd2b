"""What the tools' own pages and sources say where following them loses changes."""

from typing import Final

ADVICE: Final = ["* to be filled"]
