"""`python -m jaxagent`."""

import sys

from jaxagent.cli import main

if __name__ == "__main__":
    sys.exit(main())
