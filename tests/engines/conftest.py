"""Connections to scripted servers."""

from contextlib import ExitStack

import pytest

from draftbench.engines.connect import connect


@pytest.fixture
def connected():
    """Starts a scripted server and connects to it; both end with the test."""
    with ExitStack() as stack:

        def make(play, *engine, **options):
            server = connect(stack.enter_context(play).url, *engine, **options)
            stack.callback(server.close)
            return server

        yield make
