"""Writes the configuration with which an engine serves what a run recommends.

`serve_plan` decides what to serve, and `configurations` does what every engine needs; the engine
itself, a file in `engines/`, writes its configuration.
"""
