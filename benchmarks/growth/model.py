"""A cost model: the cost of a load as a sum of terms, each a constant times one of its causes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

# The possible causes of a full copy's cost.
TERMS: Final = ("one", "records", "versions", "touched")
TINY: Final = 1e-9
Run = Mapping[str, float]


@dataclass(frozen=True)
class Model:
    """The cost of one unit of each term, which is never negative."""

    of: str
    parts: dict[str, float]

    def predicted(self, run: Run) -> float:
        """The predicted cost of a run."""
        return sum(part * _term(run, name) for name, part in self.parts.items())

    def told(self) -> str:
        """The model in words: a sum of terms."""
        words = {
            "one": "",
            "records": " × records",
            "versions": " × closed versions",
            "touched": " × touched keys",
        }
        return " + ".join(f"{part:.3g}{words[name]}" for name, part in self.parts.items() if part > TINY)


def fitted(runs: Sequence[Run], of: str) -> Model:
    """Fit by least squares, relative to each run's cost; drop each term that would be negative."""
    names = list(TERMS)
    while True:
        weights = np.array([1 / max(run[of], 1e-9) for run in runs])
        terms = np.array([[_term(run, name) for name in names] for run in runs])
        found, *_ = np.linalg.lstsq(terms * weights[:, None], np.ones(len(runs)), rcond=None)
        if len(names) == 1 or min(found) >= 0:
            return Model(of, {name: float(part) for name, part in zip(names, found, strict=True)})
        del names[int(np.argmin(found))]


def _term(run: Run, name: str) -> float:
    return 1.0 if name == "one" else float(run[name])


def off(model: Model, runs: Sequence[Run]) -> float:
    """The mean error of the model, as a share of the measured cost."""
    return float(
        np.mean([abs(model.predicted(run) - run[model.of]) / max(run[model.of], 1e-9) for run in runs])
    )
