"""All checkpoint families, and which one a checkpoint belongs to."""

from __future__ import annotations

from model.errors import CheckpointError
from model.files import shown
from model.formats import Format, RawConfig
from model.formats.bert import BERT
from model.formats.distilbert import DISTILBERT
from model.formats.electra import ELECTRA
from model.formats.modernbert import MODERNBERT
from model.formats.mpnet import MPNET
from model.formats.nomic import NOMIC_BERT
from model.formats.roberta import ROBERTA
from model.formats.seeds import SEED_0, SEED_2

FORMATS = (SEED_0, SEED_2, BERT, ROBERTA, DISTILBERT, MPNET, ELECTRA, NOMIC_BERT, MODERNBERT)


def find_format(raw: RawConfig, where: str) -> Format:
    """Find the family of a checkpoint.

    Parameters
    ----------
    raw : RawConfig
        Its ``config.json``.
    where : str
        The file, for the error.

    Raises
    ------
    CheckpointError
        If no family here serves this ``model_type``.
    """
    model_type = raw.get("model_type")
    for candidate in FORMATS:
        if model_type in candidate.model_types:
            return candidate
    known = ", ".join(sorted(name for candidate in FORMATS for name in candidate.model_types))
    raise CheckpointError(f"{where}: model_type {shown(model_type)} is not supported; supported are {known}")
