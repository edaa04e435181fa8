"""The config of `nmt export`; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from nmt.config.roots import RunConfig
from nmt.errors import UserError
from nmt.models.configs import Mean


class Format(Enum):
    """What a folder is made for."""

    ctranslate2 = "ctranslate2"
    """CTranslate2, which translates on CPUs and GPUs, several times as fast as PyTorch."""
    huggingface = "huggingface"
    """`transformers`: `AutoModelForSeq2SeqLM` and `AutoTokenizer`, without code of its own."""
    safetensors = "safetensors"
    """Any program: the weights by the names of this project, and a config."""
    nmt = "nmt"
    """nmt: a run directory with the model alone."""


class Quantization(Enum):
    """Number format of the weights on disk."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


WITH_INT8 = (Format.ctranslate2,)
"""Formats that have quantization=int8."""


@dataclass
class ExportConfig(RunConfig):
    """Write the model of a run to be shared; of decoding, limits and beams become its defaults."""

    format: Format = MISSING
    """ctranslate2, huggingface, safetensors or nmt."""
    output: str = MISSING
    """Folder to write, which must not be there yet."""
    quantization: Quantization = Quantization.float32
    """Number format of the weights: float32, bfloat16 or float16; int8 with format=ctranslate2 only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.runs) > 1 and self.ensemble.mean is not Mean.weights:
            raise UserError(
                f"run names {len(self.runs)} runs, but an exported model is one model; export them one by "
                "one, or distil the ensemble into one model first: nmt distil teacher=[A,B]; "
                "ensemble.mean=weights makes one model of a run and those that started from it"
            )
        if self.ensemble.lm is not None:
            raise UserError(
                f"ensemble.lm={self.ensemble.lm} is a second model, but an exported model is one; "
                "leave it out"
            )
        for key in getattr(self.decoding, "narrowed_by", []):  # without a run, decoding is still missing
            raise UserError(
                f"decoding.{key}={getattr(self.decoding, key)} has no place in an exported model, which "
                f"predicts all pieces; add decoding.{key}=null"
            )
        if not self.output.strip():
            raise UserError("output must name a folder, but is empty")
        if self.quantization is Quantization.int8 and self.format in set(Format) - {*WITH_INT8}:
            raise UserError(
                f"quantization=int8 needs format=ctranslate2, but format is {self.format.value}; "
                "choose float32, bfloat16 or float16"
            )
        self.require_free()

    def require_free(self) -> None:
        """Raise `UserError` when there is something in the place of the folder."""
        if Path(self.output).exists():
            raise UserError(
                f"output: {self.output} is there already and stays; remove it, or choose another output=..."
            )
