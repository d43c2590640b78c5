"""Serving engines behind HTTP: how each is started, what it can be asked, and how it is driven."""
