"""Commands do without pandas, which pyarrow loads, in half a second, to see whether a value is one of its.

Spark asks for it: once a session starts, pandas can be imported as ever.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def leave_pandas_out() -> None:
    """From now on pandas cannot be imported; for a process to which nobody gives values of pandas."""
    sys.meta_path.insert(0, _WithoutPandas())


def let_pandas_in() -> None:
    """From now on pandas can be imported."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _WithoutPandas)]


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ImportError(name)
        return None
