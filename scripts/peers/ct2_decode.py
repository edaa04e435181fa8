"""Translate with CTranslate2: a run as `nmt export` has written it, in the number format of the job."""

import ctranslate2
from job import read_job, translated


def main():
    """Translate the lines and print the result."""
    job = read_job()
    threads = {"inter_threads": job["workers"], "intra_threads": max(job["threads"] // job["workers"], 1)}
    settings = {"device": "cpu", "compute_type": job["compute"], **threads}
    translator = ctranslate2.Translator(job["exported"], **settings)
    pieces, ids = job["pieces"], {piece: i for i, piece in enumerate(job["pieces"])}

    def translate(sources):
        results = translator.translate_batch(
            [[pieces[i] for i in source[:-1]] for source in sources],  # CTranslate2 adds the end itself
            beam_size=job["beam_size"],
            length_penalty=job["alpha"],
            max_decoding_length=max(2 * max(map(len, sources)) + 10, 1),
            max_batch_size=job["batch_sentences"],
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    translated(job, translate)


if __name__ == "__main__":
    main()
