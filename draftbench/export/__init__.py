"""Writes the configuration with which an engine serves what a run recommends.

`serve_plan` decides what to serve, `configurations` does what every engine needs, and one file for
each engine (`for_vllm`, `for_sglang`, …) writes its configuration.
"""
