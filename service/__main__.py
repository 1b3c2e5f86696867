"""`python -m service` and the console script `graphcache`."""

import sys

from service.cli import main as run


def main() -> None:
    """Run one command and exit with its code."""
    sys.exit(run())


if __name__ == "__main__":
    main()
