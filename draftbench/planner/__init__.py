"""From a `Run` to a `Recommendation`; the files in the order in which data goes through them.

Seconds of passes and rounds
    costs            timed passes → seconds of any pass, and of the rounds of a draft
    engine_costs     starts of a serving engine → seconds of whole rounds at every k
    cost_sources     which of these are used: this run's, another run's, or those of a file
Speed-ups of each configuration
    measured         decoding runs → measured speed-ups, and what rounds take beyond their passes
    predict          expected rounds × costs → predicted speed-ups
    time_factors     what decoding took over what was expected → corrections and errors of time
    alternatives     predicted, measured → expected speed-ups
The decision
    rank             speed-ups → the best configuration, and how sure that is
    at_concurrency   → the decision at one concurrency
    settling         an inconclusive decision → what would settle it
The answer
    evaluate         every configuration with its figures, and why it was not chosen
    loads            the answer at each concurrency, k by concurrency, the crossover
    latency          how long users wait
    output_check     whether speculation changes the output
    caveats, engine_caveats, unfinished, rules    what to know beside the figures
    recommend        all of these → `Recommendation`, whose records are in recommendation

`options` has what a user decides by, `what_to_measure` what a sweep asks while it runs. `formula`
and `known_pairs` serve `estimate` and `suggest`, which have no run.
"""
