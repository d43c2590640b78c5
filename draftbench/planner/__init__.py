"""From a `Run` to a `Recommendation`; the files in the order in which data goes through them.

Draws of what is measured
    passes           timed passes → seconds of any pass, and of the rounds of a draft
    cost_sources     whose passes are used: this run's, another run's, or those of a file
    cells            decoding runs → measured speed-ups, what passes promise, what timed cells took
The model
    effects          cells → how much longer than promised anything takes, and how surely
The decision
    evaluator        effects → draws of the speed-up of every configuration at any concurrency
    alternatives     what is known of each configuration, and which limits it breaks
    decide           these draws → the decision at one concurrency
    settle           what would settle an open one
The answer
    concurrencies    the answer at each concurrency, k by concurrency, the crossover
    latency          how long users wait
    output_check     whether speculation changes the output
    doubts           what makes a run's figures doubtful, for every answer
    caveats          what else to know beside the figures of this one
    headroom         what a better draft would bring
    recommend        every configuration with its figures, and why it was not chosen
                     → `Recommendation`, whose records are in recommendation

`options` has what a user decides by, `what_to_measure` what a sweep asks while it runs. `formula`
serves `estimate`, which has no run.
"""
