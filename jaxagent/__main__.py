"""`jaxagent` and `python -m jaxagent`."""

import os
import signal
import sys


def main() -> None:
    """Runs the command line. Until training takes over the signals, they end the process at once, while it imports too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: os._exit(128 + received))
    from jaxagent import cli

    sys.exit(cli.main())


if __name__ == "__main__":
    main()
