"""``python -m driftvq.cli``."""

import sys

from driftvq.cli import main

if __name__ == "__main__":
    sys.exit(main())
