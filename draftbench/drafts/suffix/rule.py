"""How a suffix tree is built, and what of it is proposed."""

from __future__ import annotations

from typing import NamedTuple


class SuffixRule(NamedTuple):
    """The settings of vLLM 0.33, with its defaults (`suffix_decoding_…` in config/speculative.py).

    Its memory also ends with the 10,000th response, after which it forgets the first.
    """

    depth: int = 24  # most tokens of a suffix with what follows it (max_tree_depth)
    # Tokens that are proposed for each token that the text ends with (max_spec_factor).
    factor: float = 1.0
    least: float = 0.1  # probability of the least likely continuation (min_token_prob)


BUILT_IN_SUFFIX = SuffixRule()
