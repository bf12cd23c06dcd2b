"""A contestant as a program: with a number it loads that table once, else it loads each that is asked for.

Answers are lines that begin with `@@`, for tools print what they like.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(os.environ["BENCH_FOLDER"])


def run(act: Callable[[int], object], after: Callable[[int], object] = int) -> None:
    """Do what the command line or the standard input asks for; `after` is not timed."""
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
        except Exception as stop:  # noqa: BLE001 - whatever a tool raises is its result
            told = {"error": f"{type(stop).__name__}: {stop}"[:500]}
        print(f"@@{json.dumps(told)}", flush=True)
