"""`jaxagent` and `python -m jaxagent`."""

import os
import signal
import sys


def main() -> None:
    """Runs the command line. Until training takes over the signals, they end the process at once, while it imports too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: os._exit(128 + received))
    from jaxagent import cli

    code = cli.main()
    if code in (0, 130, 143) or "jaxagent.distributed" not in sys.modules:
        sys.exit(code)
    from jaxagent import distributed

    distributed.leave(code)


if __name__ == "__main__":
    main()
