import time

import pytest
from audit import faults

CASES = (
    [("head", n, f) for n, f in faults.HEAD.items()]
    + [("block", n, f) for n, f in faults.BLOCK.items()]
    + [("draft", n, f) for n, f in faults.MODEL.items()]
)
CASES += [(w, "clean " + d, d) for d in ("float32", "bfloat16") for w in ("head", "block", "draft")]


@pytest.mark.parametrize(
    "which,name,fault", CASES, ids=lambda x: str(x) if isinstance(x, str) else ""
)
def test_it(audited, which, name, fault):
    t = time.time()
    f = audited(which, dtype=fault) if isinstance(fault, str) else audited(which, fault)
    with open("/tmp/table.txt", "a") as out:

        def s(t):
            return f"{t.hypothesis}[{t.detail}] {t.before.share:.3f}->{t.tally.share:.3f} req={t.requests} n={t.tally.compared} ties={t.tally.near_ties}"

        print(
            f"{which:6}{name:18} {f.verdict:14} eq={f.tally.equal} tie={f.tally.near_ties} dif={f.tally.differ} {time.time() - t:.1f}s",
            *(("\n      NAMED " + s(t)) for t in f.named),
            *(("\n      other " + s(t)) for t in f.others[:3]),
            *f.not_tried,
            file=out,
        )
