"""`python -m ewc`: the command line."""

import sys

from ewc_paper.cli import main

if __name__ == "__main__":
    sys.exit(main())
