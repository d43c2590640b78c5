"""From a `Run` to a `Recommendation`; the files in the order in which data goes through them.

Draws of what is measured
    passes           timed passes → seconds of any pass, and of the rounds of a draft
    cost_sources     whose passes are used: this run's, another run's, or those of a file
    cells            decoding runs → measured speed-ups, and what timed cells took
    seconds          passes and rounds → predicted seconds of every configuration
The model
    effects          cells → how much longer than predicted anything takes, and how surely
    stop_choice      the best rule of each kind to stop by, judged on other requests
    other_rules      foresight and a moving average, beside which it stands
    shrinkage        why the best of several drafts is not taken at its word
The decision
    table            every configuration at one load with the draws of its speed-up, a column each
    decide           a table → the decision at this load; needs no run
    evidence         what was observed of one configuration
    limits           what may not be chosen
    evaluator        a run → its tables, its evidence, and the decision at any load
    settle           what would settle an open one
The answer
    concurrencies    the answer at each load, k by load, the crossover
    latency          how long users wait
    by_context       what a configuration brings by the length of the context
    output_check     whether speculation changes the output
    caveat_kinds     every kind of caveat: what it means, from when on it is said, what to do
    doubts           what makes a run's figures doubtful, for every answer
    caveats          what else to know beside the figures of this one
    headroom         what a better draft would bring
    recommend        every configuration with its figures, and why it was not chosen
                     → `Recommendation`, whose records are in recommendation

`options` has what a user decides by, `what_to_measure` what a sweep asks while it runs. `formula`
serves `estimate`, which has no run.
"""
