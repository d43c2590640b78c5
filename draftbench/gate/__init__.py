"""Did drafting get worse? Two runs against each other, paired by request.

`pin` reduces a run to counts per request, `baseline` keeps them in a file, `pair_requests` pairs
two of them, `judge` decides by non-inferiority (`noninferiority`) within `limits`; `result` is its
answer, `notes` the sentences of it, `ci` what CI systems read. `compare` shows every difference of
two runs without a verdict. No model runs here.
"""
