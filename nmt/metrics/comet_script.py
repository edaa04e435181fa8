"""The part of COMET that another Python runs, by path: it imports nothing of this package.

Reads {"model": NAME or FILE, "data": [{"src", "mt", "ref"}]} from standard input, and writes {"version",
"scores"} to standard output, as JSON. What libraries print goes to standard error.
"""

import json
import os
import sys
from importlib import metadata


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        answer = {"version": metadata.version("unbabel-comet"), "scores": _scores(**question)}
        json.dump(answer, answers)


def _scores(model, data):  # type: ignore[no-untyped-def]
    """Return the score of each translation."""
    import comet  # type: ignore[import-not-found] # the other Python has it
    import torch

    if not data:
        return []
    path = model if os.path.exists(model) else comet.download_model(model)
    loaded = comet.load_from_checkpoint(path)
    try:
        found = loaded.predict(data, batch_size=16, gpus=int(torch.cuda.is_available()))
    except RuntimeError as error:  # a training may hold most of the memory of the GPU
        if "out of memory" not in str(error) and "ALLOC_FAILED" not in str(error):
            raise
        found = loaded.cpu().predict(data, batch_size=16, gpus=0)
    return [float(score) for score in found.scores]


if __name__ == "__main__":
    main()
