"""Translate with Marian: a model that `marian_model.py` has made, in the number format of the job."""

import pymarian
from job import batch_size, parallel, read_job, translated


def load(job):
    """Return a function of lines."""
    vocabulary = f"{job['marian']}/vocabulary.spm"
    size, is_tokens = batch_size(job)
    translator = pymarian.Translator(
        models=f"{job['marian']}/model.{job['compute']}.bin",
        vocabs=[vocabulary, vocabulary],
        cpu_threads=parallel(job)[0],
        beam_size=job["beam_size"],
        normalize=job["alpha"],
        max_length_factor=2,
        maxi_batch=1000,
        maxi_batch_sort="src",
        workspace=512,
        quiet="",
        **({"mini_batch": 1000, "mini_batch_words": size} if is_tokens else {"mini_batch": size}),
    )
    return translator.translate


if __name__ == "__main__":
    translated(read_job(), load, own_workers=True)
