"""Write the demo corpus into the package: `python -m scripts.demo_corpus`."""

from __future__ import annotations

import gzip
from pathlib import Path

import nmt.data
from scripts.demo_corpus import generate


def write(folder: Path) -> None:
    """Write one compressed TSV file for each split into `folder`."""
    for split, pairs in generate().items():
        rows = "".join(f"{english}\t{german}\n" for english, german in [("en", "de"), *pairs])
        (folder / f"demo.{split}.tsv.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))


if __name__ == "__main__":
    write(Path(nmt.data.__file__).parent / "reading" / "bundled")
