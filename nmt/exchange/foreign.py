"""Folders of models as `transformers` writes them: config.json, weights, and the files of a tokenizer.

Reads them without that library. Nothing in a folder is executed: weights are tensors, in safetensors or in
a pickle that is read as data, other files are JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nmt.data.tokens.segmenter import Segmenter, processor_of
from nmt.errors import UserError
from nmt.exchange.pickled import Refused, read_weights
from nmt.files import digest, load_json, misfits

MOST_BYTES = 1 << 26
"""Bytes of the largest JSON file; tokenizer.json of NLLB-200 has a quarter of it."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of the file with the weights; the first that there is counts, whole or in the parts of an index."""


class ForeignFolder:
    """A folder with a model of another program."""

    def __init__(self, path: Path):
        """Read config.json; raise `UserError` if there is none."""
        if not path.is_dir():
            raise UserError(f"folder={path} is no folder; name one with config.json and weights")
        self.path = path
        self.config = self.json("config.json")

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file; raise `UserError` if the file is missing or damaged."""
        file = self._required(name)
        try:
            content = load_json(file, MOST_BYTES)
            json.dumps(content, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (OSError, ValueError) as error:
            raise UserError(f"{file} is damaged: {error}") from error
        return content

    def vocabulary(self, name: str) -> dict[str, int]:
        """Return a JSON file of pieces and their ids."""
        return self.numbered(self.json(name), name)

    def numbered(self, pieces: dict[str, Any], name: str) -> dict[str, int]:
        """Return pieces with their ids, which the file `name` says; raise `UserError` if these are none."""
        if not all(type(number) is int and number >= 0 for number in pieces.values()):
            raise UserError(f"{self.path / name} must hold the number of each piece")
        return pieces

    def settings(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return config.json once it has `fields`, names with their types; ids are not negative."""
        wrong = misfits(self.config, fields)
        ids = [name for name in fields if name.endswith("_token_id")]
        wrong = wrong or [f"{name} is {self.config[name]}" for name in ids if self.config[name] < 0]
        if wrong:
            raise UserError(f"{self.path / 'config.json'} does not describe a model: {'; '.join(wrong)}")
        return self.config

    def segmenter(self, name: str) -> Segmenter:
        """Return a SentencePiece model of the folder."""
        file = self._required(name)
        try:
            content = file.read_bytes()
            processor_of(content)
            return Segmenter.parse(content)
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}") from error
        except UserError as error:
            raise UserError(f"{file} {error}") from error

    def weights(self) -> dict[str, Tensor]:
        """Return all tensors by their names, as float32.

        Raises:
            UserError: there are none, or a file is damaged or asks for more than tensors.
        """
        tensors: dict[str, Tensor] = {}
        for file in self._weight_files():
            try:
                tensors |= load_file(file) if file.suffix == ".safetensors" else read_weights(file)
            except Refused as error:
                raise UserError(f"{file} {error}") from error
            except (OSError, SafetensorError) as error:
                raise UserError(f"{file} is damaged: {error}") from error
        return {name: x.float() if x.is_floating_point() else x for name, x in tensors.items()}

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the files with the weights."""
        return {file.name: digest(file) for file in self._weight_files()}

    def _weight_files(self) -> list[Path]:
        for whole in WEIGHTS:
            index = f"{whole}.index.json"
            if (self.path / index).is_file():
                return [self._required(name) for name in self._parts(index)]
            if (self.path / whole).is_file():
                return [self.path / whole]
        raise UserError(f"{self.path} has neither {' nor '.join(WEIGHTS)}; one of them holds the weights")

    def _parts(self, index: str) -> list[str]:
        """Return the names of the files of an index; raise `UserError` if one is not of the folder."""
        found = self.json(index).get("weight_map")
        if not found or not isinstance(found, dict):
            raise UserError(f"{self.path / index} has no weight_map, the file of each weight")
        names = sorted(set(map(str, found.values())))
        suffix = Path(index.removesuffix(".index.json")).suffix
        if any(Path(name).name != name or Path(name).suffix != suffix for name in names):
            raise UserError(f"{self.path / index} names files that are not {suffix} files of its folder")
        return names

    def _required(self, name: str) -> Path:
        if not (self.path / name).is_file():
            raise UserError(f"{self.path} has no {name}, which the import needs")
        return self.path / name
