"""Versions of engines: how they are written, and the first that has what an export writes."""

from __future__ import annotations

import re

from draftbench.errors import UsageError

Version = tuple[int, int]
_OLDEST, _NEWEST = (0, 0), (10**9, 0)
# vLLM's first versions with what is written here, by its wheels on PyPI.
VLLM_NGRAM, VLLM_DRAFT, VLLM_RATES, VLLM_SAMPLING = (0, 10), (0, 15), (0, 21), (0, 23)
VLLM_PER_CHANNEL = VLLM_SCHEDULE = (0, 24)
VLLM_VOCABULARIES, VLLM_PARALLEL = (0, 25), (0, 26)
# Its default runner, the second, serves draft models and n-grams from these on.
VLLM_DRAFT_RUNNER, VLLM_NGRAM_RUNNER = (0, 31), (0, 32)
# llama.cpp's version is its build; those between the old flags and the new ones were not seen.
_OLD_BUILD, NEW_BUILD, RATES_BUILD, SAMPLING_BUILD = 8877, 9626, 10649, 11368
RENAMING = {"before-rename": _OLDEST, "after-rename": (NEW_BUILD, 0)}


def version_of(engine: str, version: str | None) -> Version:
    """The version that is meant, the newest where none is given.

    Raises:
        UsageError: it is none, or llama.cpp's flags are not known for it.
    """
    if version is None:
        return _NEWEST
    if engine == "llama.cpp":
        build = re.fullmatch(r"b(\d{1,9})", version)
        number = int(build[1]) if build else -1
        if 0 <= number <= _OLD_BUILD or number >= NEW_BUILD:
            return number, 0
        if version not in RENAMING:
            raise UsageError(
                f"llama.cpp's flags are not known for `{version}`",
                hint=f"give --engine-version {' or '.join(RENAMING)} (until April 2026, from May "
                "on), or a build like b11368",
            )
        return RENAMING[version]
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})(?![0-9])", version)
    if not numbers:
        raise UsageError(f"`{version}` is not a version", hint="for example 0.26 or 1.4.0rc1")
    return int(numbers[1]), int(numbers[2])


def too_old(engine: str, oldest: str, feature: str) -> UsageError:
    return UsageError(
        f"{engine} before {oldest} has no {feature}", hint=f"use {engine} {oldest} or newer"
    )
