"""`python -m nmt` is the `nmt` command."""

import sys

from nmt.cli import main

if __name__ == "__main__":
    sys.exit(main())
