"""The program: `draftbench`, or `python -m draftbench` if the scripts' directory is not on the
path.
"""

import os
import signal
from typing import NoReturn


def entry() -> NoReturn:
    """Run the command line, and exit with its code."""
    # Importing it takes a fifth of a second, during which Ctrl-C could raise an exception anywhere.
    signal.signal(signal.SIGINT, _leave)
    from draftbench import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.entry()


def _leave(*_: object) -> NoReturn:
    os.write(2, b"error: interrupted\nhint: nothing was begun; run the command again\n")
    os._exit(130)


if __name__ == "__main__":
    entry()
