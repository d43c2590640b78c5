"""The configuration that makes an engine serve what a run recommends."""
