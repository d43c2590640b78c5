"""Whether the rounds that an engine, or the built-in decoder, recorded are those that replay says;
and if not, under which hypothesis they would be.

    explained     recorded rounds beside a replay: equal, a near tie, or different
    along_rounds  a draft whose cache forgets nothing, replayed along the recorded rounds
    hypotheses    the table of what may be wrong, and how a replay changes where it is
    replaying     a run's target and draft, loaded to be replayed again under a hypothesis
    audit         a run → the verdict
"""
