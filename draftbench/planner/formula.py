"""α, k and c → what the closed form of speculative decoding promises.

Source: Leviathan, Kalman & Matias 2023, arXiv 2211.17192. All positions are assumed to be alike, so
these figures serve `estimate` and explanations, and are labelled as such. With a replay at hand the
planner sums over expected rounds instead.

`cost` is c per draft *token*, so a round costs 1 + k·c target steps. In formulas that divide by 1 +
c, c is the cost of the whole draft pass; with a per-token c they promise too much. If the pass over
k+1 tokens costs v steps instead of 1,

    speed-up = (1 - α^(k+1)) / (1 - α) / (k·c + v)

with v, the argument `verify`, being 1 in the paper. It grows with k, most of all for a mixture of
experts, where further tokens read further experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from draftbench.acceptance.rounds import alpha_of
from draftbench.errors import UsageError

# The best k is looked for among these.
_KS = range(1, 65)


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens of a round, (1 - α^(k+1)) / (1 - α) (eq. 1), k+1 at α = 1.

    Raises:
        UsageError: α outside [0, 1] or k < 0; all functions here raise it.
    """
    _check(alpha, k)
    # The sum of the geometric series: the quotient loses its digits near α = 1.
    return sum(alpha**i for i in range(k + 1))


def speedup(alpha: float, k: int, cost: float, *, verify: float = 1.0) -> float:
    """Tokens per second with speculation over without (theorem 3.8); 1 at k = 0, plain decoding."""
    _check(alpha, k, cost, verify)
    return expected_tokens(alpha, k) / (k * cost + verify) if k else 1.0


def best_k(
    alpha: float, cost: float, ks: Sequence[int] = _KS, *, verify: Mapping[int, float] | None = None
) -> int:
    """The k of 0 and `ks` with the highest speed-up, the smallest of equals; 0 says: do not
    speculate.

    Args:
        verify: v(k + 1) by k, 1 where it has none.
    """
    at = verify or {}
    return max((0, *sorted(ks)), key=lambda k: speedup(alpha, k, cost, verify=at.get(k, 1.0)))


def break_even_alpha(k: int, cost: float, *, verify: float = 1.0) -> float | None:
    """The α from which k drafted tokens pay for themselves; None if not even α = 1 is enough.

    At k = 1 it equals c (corollary 3.9).
    """
    _check(1.0, k, cost, verify)
    tokens = k * cost + verify
    return alpha_of(tokens, k) if tokens <= k + 1 else None


class FormulaRow(msgspec.Struct, frozen=True):
    """The closed form at one k."""

    k: int
    verify_ratio: float  # v(k+1)
    tokens_per_round: float
    speedup: float  # S
    break_even_alpha: float | None  # α from which this k pays


class FormulaTable(msgspec.Struct, frozen=True):
    """The closed form over draft lengths, and the best of them with the α from which it pays. Where
    none is faster than decoding without a draft, the best k is 0 and there is no such α.
    """

    alpha: float
    draft_cost_ratio: float  # c, per draft token
    verify_ratio: float | None  # v, where one is taken for every k
    best_k: int  # 0: none of the rows pays
    best_speedup: float  # S at that k
    best_break_even_alpha: float | None  # α from which it pays
    faster_k: int | None  # the best of 1 … 64, if one v is taken for all and it beats every row
    faster_speedup: float | None  # S at that k
    rows: tuple[FormulaRow, ...]  # one entry per k
    # what the figures rest on
    basis: str = "closed form, positions alike (Leviathan et al. 2023); not measured"


def formula_table(
    alpha: float, cost: float, ks: Sequence[int], verify: Sequence[float] = (1.0,)
) -> FormulaTable:
    """Everything that the closed form says for one α and c.

    Args:
        verify: v(k + 1) for each of `ks`, or one for every k.

    Raises:
        UsageError: there are neither as many as `ks` nor one.
    """
    one = verify[0] if len(verify) == 1 else None
    for ratio in verify:
        _check(alpha, 1, cost, ratio)
        if ratio < 1:
            raise UsageError(
                f"a verify ratio of {ratio:g} says that a pass over k + 1 tokens takes less time "
                "than one over a single token",
                hint="give 1 or more: the time of the longer pass divided by that of the shorter",
            )
    if one is None and len(verify) != len(ks):
        raise UsageError(
            f"{len(verify)} verify ratios do not fit {len(ks)} draft lengths",
            hint=f"give one for each k, for example with `--k 1-{len(verify)}`",
        )
    at = dict.fromkeys((*_KS, *ks), verify[0]) if one else dict(zip(ks, verify, strict=True))
    best, anywhere = (best_k(alpha, cost, among, verify=at) for among in (ks, sorted(at)))
    reached, possible = (speedup(alpha, k, cost, verify=at.get(k, 1.0)) for k in (best, anywhere))
    return FormulaTable(
        alpha=alpha,
        draft_cost_ratio=cost,
        verify_ratio=one,
        best_k=best,
        best_speedup=reached,
        best_break_even_alpha=break_even_alpha(best, cost, verify=at[best]) if best else None,
        faster_k=anywhere if possible > reached else None,
        faster_speedup=possible if possible > reached else None,
        rows=tuple(
            FormulaRow(
                k=k,
                verify_ratio=at[k],
                tokens_per_round=expected_tokens(alpha, k),
                speedup=speedup(alpha, k, cost, verify=at[k]),
                break_even_alpha=break_even_alpha(k, cost, verify=at[k]),
            )
            for k in ks
        ),
    )


def _check(alpha: float, k: int, cost: float = 0.0, verify: float = 1.0) -> None:
    if not 0 <= alpha <= 1:
        raise UsageError(
            f"an acceptance rate of {alpha} is not a probability",
            hint="give it between 0 and 1; a mean accepted length is not an acceptance rate",
        )
    if k < 0:
        raise UsageError(f"a draft length of {k} is negative", hint="0 means no speculation")
    if not 0 <= cost < float("inf"):
        raise UsageError(
            f"a draft cost ratio of {cost} cannot be used",
            hint="give the time of one draft step over that of one target step, 0 or more",
        )
    if not 0 < verify < float("inf"):
        raise UsageError(
            f"a verify ratio of {verify} cannot be used",
            hint="give the time of a target pass over k+1 tokens in steps of one, usually 1 to 2",
        )
