"""`python -m draftbench`: the command line where no script directory is on the path."""

from draftbench.cli import entry

entry()
