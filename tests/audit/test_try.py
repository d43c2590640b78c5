import time
import torch
from audit.conftest import *
import pytest
def show(found):
    print(found.verdict, found.counted, found.requests, found.tally, found.not_tried)
    for t in (*found.named, *found.others)[:45]:
        print("   ", t in found.named, t.hypothesis, t.detail, t.requests, t.tally.share, t.before.share, t.tally.compared)
FAULTS = {
  "clean": None,
  "layers": on_head(reads=lambda h: tuple(r+1 for r in h.reads)),
  "d2t": on_head(target_ids=lambda h: torch.arange(1024)),
}
@pytest.mark.parametrize("name", FAULTS)
def test_it(audited, name):
    t=time.time()
    show(audited("head", FAULTS[name])); print(time.time()-t)
