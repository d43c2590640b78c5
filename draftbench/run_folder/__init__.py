"""Where a run is kept; the files in the order of data.

    manifest     the head: the question, the effort, the traffic's facts, the environment
    append_log   files of records, which are only appended to
    folder       the folder itself: created, written by one process, read strictly, redacted
    run          observations → `Run`, grouped for the offline half
    served       an engine's answers → decoding runs, as the built-in decoder records them

`key` is the key of the hashes in all of them; `machine` watches the machine while a sweep measures.
"""
