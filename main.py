"""The entry point that Fivetran's build looks for: `backstory serve` with the arguments given."""

import multiprocessing
import sys

from backstory.cli.app import main

if __name__ == "__main__":
    multiprocessing.freeze_support()
    main(["serve", *sys.argv[1:]])
