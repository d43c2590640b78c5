"""Serving engines behind HTTP: how each is started, what it is asked, and how it is driven."""
