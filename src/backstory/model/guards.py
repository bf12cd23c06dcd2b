"""How much of what is stored may go at once (sections 2.4 and 3.6 of the specifications)."""

from fractions import Fraction


def exceeds(part: int, ratio: float, whole: int) -> bool:
    """Whether `part` is more than this share of `whole`, the ratio taken as the decimal that is written.

    In floats 0.29 of 100 is less than 29, and a load that does what it may would be refused.
    """
    return part > Fraction(str(ratio)) * whole
