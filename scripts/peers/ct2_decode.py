"""Translate with CTranslate2: a run as `nmt export` has written it, in the number format of the job."""

import ctranslate2
from job import batch_size, of_text, parallel, read_job, translated


def load(job):
    """Return a function of lines."""
    workers, threads = parallel(job)
    settings = {"device": "cpu", "compute_type": job["compute"]}
    translator = ctranslate2.Translator(
        job["exported"], inter_threads=workers, intra_threads=threads, **settings
    )
    pieces, ids = job["pieces"], {piece: i for i, piece in enumerate(job["pieces"])}
    size, is_tokens = batch_size(job)

    def translate(sources):
        results = translator.translate_batch(
            [[pieces[i] for i in source[:-1]] for source in sources],  # CTranslate2 adds the end itself
            beam_size=job["beam_size"],
            length_penalty=job["alpha"],
            max_decoding_length=max(2 * max(map(len, sources)) + 10, 1),
            max_batch_size=size,
            batch_type="tokens" if is_tokens else "examples",
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return of_text(job, translate)


if __name__ == "__main__":
    translated(read_job(), load, own_workers=True)
