"""A contestant as a program: it loads the table of its argument once, or each table named on standard input.

Answers are lines that begin with `@@`, because tools print other lines.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(os.environ["BENCH_FOLDER"])


def run(act: Callable[[int], object], after: Callable[[int], object] = int) -> None:
    """Load the table of the command line, or the tables of standard input; `after` is not timed."""
    if len(sys.argv) > 1:
        act(int(sys.argv[1]))
        return
    print("@@{}", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        try:
            act(int(line))
            told = {"seconds": time.perf_counter() - began}
            after(int(line))
        except Exception as stop:  # noqa: BLE001 - any error of a tool is its result
            told = {"error": f"{type(stop).__name__}: {stop}"[:500]}
        print(f"@@{json.dumps(told)}", flush=True)
