"""`python -m draftbench.cli`."""

from draftbench.cli import entry

entry()
