"""Run the commands of pages, one after the other, in the working folder, in a separate process with Spark.


Before a release each command has its own session, as for users. Otherwise one session serves all commands.

Its arguments are the pages. It ends with the first command that fails, and prints the page and the line.
"""

import sys
import time
from pathlib import Path

from depth import DEPTH
from documented import blocks
from pyspark.sql import SparkSession

from backstory.cli.app import run


def follow(page: Path) -> None:
    known: dict[str, object] = {}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "python":
            exec(compile(block.text, where, "exec"), known)
        asked = [["backstory", "sql", block.text]] if block.language == "sql" else block.commands
        for words in asked:
            began = time.monotonic()
            code = run(words[1:]) if words[0] == "backstory" else 0
            sys.stderr.write(f"{time.monotonic() - began:5.1f} s  {' '.join(words)}\n")
            if code:
                sys.exit(f"{where}: {' '.join(words)} ended with {code}")


if __name__ == "__main__":
    if DEPTH != "laws":
        SparkSession.stop = lambda _: None
    for each in sys.argv[1:]:
        follow(Path(each))
