"""The ids and logits of an imported model beside those of the model in `transformers`."""

from __future__ import annotations

from typing import Any

import torch

from nmt.data.special_ids import BOS_ID, EOS_ID, UNK_ID
from nmt.exchange.imported import Imported
from nmt.runs.opened import Run


def require_agreement(
    run: Run, imported: Imported, model: Any, batch: Any, src: list[int], tgt: list[int]
) -> None:
    """Fail unless the target ids are those of `batch`, and the logits of all tokens that both know agree."""
    rows = torch.tensor(imported.tgt.rows)
    num_known = len(rows) - imported.tgt.num_added
    known = [UNK_ID, EOS_ID, *range(EOS_ID + 1, num_known)]
    assert rows[torch.tensor(tgt)].tolist() == batch.labels[0].tolist()
    ids = torch.tensor([src])
    with torch.no_grad():
        expected = model(**batch).logits[0][:, rows[known]]
        hidden = run.model(ids, torch.ones_like(ids).bool(), torch.tensor([[BOS_ID, *tgt[:-1]]]))
        found = run.model.project(hidden)[0]
    torch.testing.assert_close(found[:, known], expected, atol=1e-4, rtol=0)
    assert (found[:, num_known:] < expected.max() - 20).all()
