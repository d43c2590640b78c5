"""The kinds of caveats: from when on each is said and why from then on, what it makes doubtful, and
what to do about it. `draftbench explain KIND` prints a row.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.records import LONGER
from draftbench.run_folder.served import MOST_CACHED

# Fewer decoded requests do not correct a prediction: one noisy request would decide it.
FEW_DECODED = 5
# Above this load per core when a run begins, its times are noisy.
LOAD_AVERAGE = 0.75
# Shares of the cores that other processes use, and of the run during which they do.
BUSY_CORES, BUSY_TIME = 0.25, 0.1
# With thirty requests a speed-up's interval reaches about a tenth to either side: a machine that
# drifts by more from the first draft to the last, and half as much from one half of the run to the
# other, moves it.
DRIFT = 0.05
# Few starts of an engine are compared, which differ by more: half of all machines by 3.5 to 12%.
DRIFT_OF_STARTS = 0.1
# Rounding activations to 8 bits alone changes the token at 6% of positions, whether replayed or
# stepped (SmolLM2), which acceptance averages out; it never changed more than a fifth of the 48
# positions that are stepped through.
DISAGREEMENT, MORE_THAN_ROUNDING = 0.05, 0.2
LOOPING = 0.05  # of the output tokens
# Responses of so many tokens do not agree by chance, as labels may, and prompts that a date or an
# id sets apart are about as long, as those that get the same refusal are not. From this share of
# copies on intervals are noticeably too narrow (by 5%).
TELLING_TOKENS, TOKENS_APART, COPIES = 16, 4, 0.1
# Times the median round, of the same decoding run or of the same server's answers. (Without a stall
# the slowest took 3.6 times as long: 13 runs on vLLM and llama.cpp, also on a busy machine.)
ROUND_STALL, ANSWER_STALL, ROUNDS_TO_JUDGE = 20.0, 10.0, 5
STALLED = 0.02  # from this share on, the speed-up moves by more than its interval
# A hundredth of the rows with ten times the context has a tenth of all context.
MISSED_LONG = 0.01
# Decoding may take longer than its passes timed alone, with a draft and without. What only plain
# decoding takes moves every speed-up alike, so that no other decoding shows it: the model expects
# 3% of it (`effects.RUNNER`), seven kept runs had at most 3%, and intervals hold three times that.
MISMATCH = 0.1
# c is uncertain if the upper end of its interval is this many times the lower one, and this many
# target steps above it.
UNCERTAIN_TIMES, UNCERTAIN_STEPS = 3.0, 0.1
# Three times what the model expects of one configuration (5%). The median was 0.3 to 8% in 12 runs,
# and over 25% in two whose passes or decoding other processes disturbed. One configuration alone is
# worth a word from five times on.
PREDICTION_ERROR, PREDICTION_ERROR_OF_ONE = 0.15, 0.25
# Requests sent at a smaller share of the log's load say little about that load.
WHOLE_LOAD = 0.9
# A speed-up may exceed the tokens per round by this factor: noise, and lucky decoded requests.
OVER_TOKENS = 1.25

CaveatKind = Literal[
    "unanswered",
    "output-differs",
    "suspected-fault",
    "prediction-error",
    "failed",
    "not-timed",
    "borrowed-costs",
    "looping",
    "stalled",
    "uncertain-cost",
    "slow-step",
    "throttled",
    "no-fast-kernel",
    "earlier-responses",
    "baseline-mismatch",
    "busy-machine",
    "cached-prompts",
    "contradiction",
    "control-failed",
    "copied-requests",
    "drift",
    "few-decoded",
    "few-requests",
    "impossible",
    "logged-responses",
    "miscounted",
    "model",
    "no-speed",
    "other-machines",
    "other-server",
    "longer-prompts",
    "outside-timed-range",
    "partly-replayed",
    "replay-disagreement",
    "shared-server",
    "structured-output",
    "thinned-log",
    "too-few",
    "unfinished",
    "untold-rounds",
]


class AboutCaveat(msgspec.Struct, frozen=True):
    """What a caveat of this kind means, when it is said, and what to do."""

    means: str  # what it says of a run
    when: str  # from when on it is said
    advice: str  # what to do
    # What it makes doubtful for every answer that rests on it; nothing: it concerns what it names.
    doubts: Literal["acceptance", "speed", ""] = ""
    decisive: str = "never"  # when an answer is provisional for it: always, never, or a condition
    urgent: bool = False  # whether it may stand on the first screen, in the order of this table


_QUIET = "Close other programs, or take another machine, and sweep again in another --out."
_MEASURE_MORE = "Sweep more requests: `recommend` says how many would settle the decision."
_SAME_SERVERS = "Start both servers with the same flags but for drafting, and sweep again."

CAVEATS: dict[CaveatKind, AboutCaveat] = {
    "unanswered": AboutCaveat(
        "A server left requests without an answer, and every figure covers only the others, which "
        "may be the easier ones.",
        "One request or more got no answer.",
        "Look at the server's log, then repeat the command: it asks these requests again.",
        decisive="always",
        urgent=True,
    ),
    "output-differs": AboutCaveat(
        "With speculation the model writes other texts than without it, where it should write the "
        "same ones.",
        "At temperature 0 an answer differs where no near tie explains it, or where the server "
        "does not say whether one does.",
        "Check that both servers load the same weights at the same precision; then report it to "
        "the engine.",
        decisive="where more than half of the answers differ so",
        urgent=True,
    ),
    "suspected-fault": AboutCaveat(
        "Acceptance has the pattern that a known mistake leaves, such as a wrong chat template or "
        "a shifted head.",
        "Acceptance by position, by segment or of the target itself shows it beyond chance.",
        "Follow the advice after the semicolon; `draftbench check` looks at the pair itself.",
        "acceptance",
        urgent=True,
    ),
    "prediction-error": AboutCaveat(
        "Measured speed-ups are not the ones that timed passes and replay predict, so one of the "
        "two was disturbed.",
        f"They differ by more than {PREDICTION_ERROR:.0%} (median), three times what is usual; for "
        f"a single configuration, by more than {PREDICTION_ERROR_OF_ONE:.0%}. Not said where "
        "`baseline-mismatch` explains it.",
        _QUIET,
        decisive="for the best draft, for what ran faster than it, and where the median is off",
        urgent=True,
    ),
    "failed": AboutCaveat(
        "A draft could not be measured, or not completely.",
        "It failed, or its pair was refused.",
        "Mend what the sentence names and repeat the command: it measures only what is missing.",
        urgent=True,
    ),
    "not-timed": AboutCaveat(
        "A draft was replayed but never timed in the engine: its acceptance is known, its speed is "
        "not.",
        "Another draft was timed there.",
        "See why its server was not measured, then repeat the sweep without --measure replay.",
        urgent=True,
    ),
    "borrowed-costs": AboutCaveat(
        "Speed-ups combine this run's acceptance with another machine's times: they are "
        "predictions.",
        "`--costs` names a file or another run.",
        "Measure there before you decide, if you can.",
        "speed",
        urgent=True,
    ),
    "looping": AboutCaveat(
        "The target repeats itself, which makes its text easy to draft: acceptance is too high.",
        f"In more than {LOOPING:.0%} of the output.",
        "Use your traffic's own sampling settings and limits; small models loop at temperature 0.",
        "acceptance",
        urgent=True,
    ),
    "stalled": AboutCaveat(
        "Some runs stalled for a while, as when a process is suspended or another job starts.",
        f"A round took over {ROUND_STALL:g} times as long as usual; on an engine, an answer's "
        f"rounds over {ANSWER_STALL:g} times.",
        _QUIET,
        "speed",
        decisive=f"where over {STALLED:.0%} of the runs stalled",
        urgent=True,
    ),
    "uncertain-cost": AboutCaveat(
        "Repeats of one pass took very different times, so what a draft costs is uncertain.",
        f"The upper end of the interval of c is {UNCERTAIN_TIMES:g} times the lower end, and "
        f"over {UNCERTAIN_STEPS:g} target steps above it.",
        _QUIET,
        urgent=True,
    ),
    "slow-step": AboutCaveat(
        "A pass over one token takes longer than one over several: the library's step without a "
        "draft is slow, which makes speculation look better than it is.",
        "As timed, beyond noise.",
        "Measure on the engine that you serve with.",
        decisive="where a fair step would change the decision",
        urgent=True,
    ),
    "throttled": AboutCaveat(
        "Cores overheated and were slowed down, so times are unsteady.",
        "The machine counted it during the sweep.",
        "Cool the machine, or use fewer --threads, and sweep again.",
        "speed",
        urgent=True,
    ),
    "no-fast-kernel": AboutCaveat(
        "This level makes the draft no faster on this device; it only saves memory.",
        "Its step is slower than the unquantized draft's, beyond both intervals.",
        "Leave the level out, or measure it on the engine that you serve with.",
        urgent=True,
    ),
    "earlier-responses": AboutCaveat(
        "A draft remembers earlier responses, so what it gains depends on which came before, and "
        "was found as if the sampled requests were served one after the other, as they are logged.",
        "The draft remembers responses.",
        "Sweep as much of the log as you can; beside it, `suffix-alone` shows what memory gains.",
        "acceptance",
        urgent=True,
    ),
    "baseline-mismatch": AboutCaveat(
        "Decoding without a draft is off its own steps by more than the rounds beside it, or "
        "rounds are faster than their passes: every speed-up is off by as much.",
        f"By more than {MISMATCH:.0%}, and by more than twice its error; three times what was seen "
        "in undisturbed runs.",
        _QUIET,
        "speed",
        decisive="always",
    ),
    "busy-machine": AboutCaveat(
        "Other programs ran meanwhile: times are noisy, acceptance is not affected.",
        f"They used over {BUSY_CORES:.0%} of the cores for over {BUSY_TIME:.0%} of the run; where "
        f"that is unknown, the load was over {LOAD_AVERAGE:g} per core when the run began.",
        _QUIET,
        "speed",
        decisive="always",
    ),
    "cached-prompts": AboutCaveat(
        "The server knew prompts already: first tokens came too early, and requests waited less "
        "for each other.",
        f"Over {MOST_CACHED:.0%} of the prompt tokens were cached, with or without speculation.",
        "Switch the server's prefix cache off and sweep again.",
        "speed",
        decisive="where requests wait for prefills, or latency is asked for",
    ),
    "contradiction": AboutCaveat(
        "Decoding accepted other tokens than replay says it should, so the replay is not used.",
        "The rounds, or the tokens at near ties, differ beyond chance.",
        "Sweep again with --dtype float32; if it stays, report it.",
        "acceptance",
        decisive="always",
    ),
    "control-failed": AboutCaveat(
        "The target, as its own draft, was rejected: replay cannot be relied on for any draft.",
        "More rejections than near ties explain.",
        "Sweep again with --dtype float32; if it stays, report it.",
        "acceptance",
        decisive="always",
    ),
    "copied-requests": AboutCaveat(
        "Requests differ only in a date or an id and get the same answer: they say less than their "
        "number, and intervals are too narrow.",
        f"Over {COPIES:.0%} of the requests repeat an earlier one's answer, of {TELLING_TOKENS} "
        f"tokens or more, to a prompt at most {TOKENS_APART} tokens longer or shorter.",
        "Sample requests that differ in more than that.",
        "acceptance",
        decisive="where half of the requests are copies",
    ),
    "drift": AboutCaveat(
        "The machine became slower or faster during the sweep, and drafts were measured one after "
        "the other.",
        f"Plain decoding changed by more than {DRIFT:.0%} (on an engine {DRIFT_OF_STARTS:.0%}) "
        "from the first half of the run to the second, beyond its scatter.",
        "Sweep again on a machine at a steady temperature; on an engine, with --restarts 3.",
        "speed",
        decisive="on the built-in decoder; on engines unless all servers were started several "
        "times or took turns",
    ),
    "few-decoded": AboutCaveat(
        "Few requests were decoded, so the measured speed-up is rough.",
        f"Fewer than {FEW_REQUESTS} requests and fewer than were replayed; under {FEW_DECODED} "
        "they do not correct the prediction.",
        "Raise --measure-requests.",
        decisive="always",
    ),
    "few-requests": AboutCaveat(
        "Intervals over few requests are rough, and long requests outweigh the others.",
        f"Fewer than {FEW_REQUESTS} requests, or so unequal in length that they count as fewer.",
        _MEASURE_MORE,
        decisive="always",
    ),
    "impossible": AboutCaveat(
        "The speed-up is larger than the tokens per round allow: decoding without a draft was "
        "disturbed.",
        f"By more than {OVER_TOKENS - 1:.0%}.",
        _QUIET,
        decisive="always",
    ),
    "logged-responses": AboutCaveat(
        "The responses were written by whatever wrote the log, not by this target.",
        "With `--responses log`.",
        "Let the target write its own: --responses target.",
        "acceptance",
    ),
    "miscounted": AboutCaveat(
        "A server counts equal texts as unequal numbers of tokens, so tokens per second of the two "
        "cannot be compared.",
        "Equal texts have different counts.",
        "Sweep again with --tokenizer: tokens are then counted here.",
        "speed",
        decisive="always",
    ),
    "model": AboutCaveat(
        "Something about a model that its figures depend on, such as weights made by rounding.",
        "As found when it was loaded.",
        "Read the sentence: whether it matters depends on what you will serve.",
    ),
    "no-speed": AboutCaveat(
        "No draft's speed is known, so there is nothing to decide.",
        "Nothing was timed, everything failed, or all drafts break a limit.",
        "The sentence says why; `draftbench acceptance` shows what is known.",
    ),
    "other-machines": AboutCaveat(
        "Workers on other machines wrote responses or replays, where near ties may fall "
        "differently. Times come from one machine.",
        "A worker's machine differs from the first.",
        "Nothing, unless acceptance is close to a limit: then use machines of one kind.",
        "acceptance",
    ),
    "other-server": AboutCaveat(
        "The servers with and without speculation differ in more than drafting, and the speed-up "
        "includes that.",
        "Both report a setting, and the values differ.",
        _SAME_SERVERS,
        "speed",
        decisive="always",
    ),
    "longer-prompts": AboutCaveat(
        "Prompts of the traffic are far longer than any that was drawn, and acceptance and costs "
        "change with the context.",
        f"From {MISSED_LONG:.0%} of the rows on, prompts have more than {LONGER:g} times as many "
        "characters as the longest that was drawn.",
        "Draw some: `--segment-by` a field that tells them apart, or a larger --sample.",
        urgent=True,
    ),
    "outside-timed-range": AboutCaveat(
        "Some responses are longer than what was timed, or a k needs longer passes.",
        "One response or more; the nearest timed passes are used.",
        "Nothing for a few; otherwise sweep a sample with such lengths.",
    ),
    "partly-replayed": AboutCaveat(
        "A draft was replayed on fewer responses than the others, so its figures are over other "
        "requests.",
        "One response or more is missing.",
        "Repeat the command: it replays what is missing.",
        "acceptance",
        decisive="always",
    ),
    "replay-disagreement": AboutCaveat(
        "Stepping token by token, the draft chooses other tokens than in one replayed pass.",
        f"At over {DISAGREEMENT:.0%} of the positions tried.",
        "Sweep again with --dtype float32; a position embedding may be read wrongly.",
        "acceptance",
        decisive=f"without quantization; with it from {MORE_THAN_ROUNDING:.0%} on, which rounding "
        "alone never reached",
    ),
    "shared-server": AboutCaveat(
        "Somebody else used the server: its speed was shared, and its counters count both.",
        "Its counters moved by more than this sweep's requests.",
        "Sweep on servers that nobody else uses.",
        "speed",
        decisive="always",
    ),
    "structured-output": AboutCaveat(
        "Drafts are replayed without the grammar that an engine holds answers to, so acceptance "
        "of such requests is not what the engine reaches.",
        "One request or more asks for structured output.",
        "Trust the engine's measured speed-up; read α as that of the other requests.",
    ),
    "thinned-log": AboutCaveat(
        "Only a part of the log was sent, at the log's times: a lighter load than yours.",
        f"Less than {WHOLE_LOAD:.0%} of the log's requests per second.",
        "Sweep again with the --time-scale that the sentence names.",
        decisive="always",
    ),
    "too-few": AboutCaveat(
        "The best draft has too few requests for an interval, and without one nothing is decided.",
        "Fewer than five, or so unequal that they count as fewer.",
        _MEASURE_MORE,
        decisive="where requests are enough by number but too unequal",
    ),
    "unfinished": AboutCaveat(
        "The sweep was cut off.",
        "Responses or drafts are missing, or nothing tells that the files are whole.",
        "Repeat the same command, which resumes it.",
        "acceptance",
        decisive="always",
    ),
    "untold-rounds": AboutCaveat(
        "The server reports nothing about its drafting, so its acceptance is unknown.",
        "No answer came with counts of drafted tokens.",
        "Name the engine with --engine, if it is one that draftbench knows.",
    ),
}
# What a kind of caveat makes doubtful, for every answer that rests on it.
ACCEPTANCE = frozenset(kind for kind in CAVEATS if CAVEATS[kind].doubts == "acceptance")
SPEED = frozenset(kind for kind in CAVEATS if CAVEATS[kind].doubts == "speed")
assert get_args(CaveatKind) == tuple(CAVEATS)
