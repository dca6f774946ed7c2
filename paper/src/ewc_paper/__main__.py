"""`python -m ewc_paper`: the command line."""

import sys

from ewc_paper.cli import main

if __name__ == "__main__":
    sys.exit(main())
