"""Serving engines behind HTTP: what is asked of them, how each speaks, and how they are driven."""
