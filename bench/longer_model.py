"""A copy of a model that reads as many tokens as it has positions for, where its own folder stops before.

all-MiniLM-L6-v2 has 512 positions and reads 256 tokens by its authors' choice. What attention costs and how fast the
page is are measured up to 512, on the model's own weights; what such embeddings are worth is no matter here.
"""

from __future__ import annotations

import json
from pathlib import Path

MAX_LENGTH = 512
LIMIT_FILE = "sentence_bert_config.json"


def longer_model(source: Path, folder: Path) -> Path:
    """Fill ``folder`` with links to the files of ``source``, and one number changed.

    Parameters
    ----------
    source : Path
        A model folder of sentence-transformers.
    folder : Path
        Empty.

    Returns
    -------
    Path
        ``folder``; or ``source``, where the model has positions for fewer than :data:`MAX_LENGTH` tokens.
    """
    if json.loads((source / "config.json").read_text())["max_position_embeddings"] < MAX_LENGTH:
        return source
    for path in source.iterdir():
        if path.name not in {LIMIT_FILE, "SHA256SUMS"}:
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((source / LIMIT_FILE).read_text())
    (folder / LIMIT_FILE).write_text(json.dumps(config | {"max_seq_length": MAX_LENGTH}))
    return folder
