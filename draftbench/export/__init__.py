"""The configuration that makes an engine serve what a run recommends.

`setting` says what to serve, `configurations` what holds for every engine, and one file an engine
(`for_vllm`, `for_sglang`, …) writes the configuration.
"""
