"""The list of tiny models that are compared: every family, and every option that changes its arithmetic."""

from __future__ import annotations

from tests.oracle.tiny import ROBERTA_SPECIALS, Family

MODERNBERT_IDS = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
    # 5 tokens on each side, and both kinds of layers twice
    "num_hidden_layers": 5,
    "local_attention": 10,
}

FAMILIES = (
    Family(
        "bert", "BertConfig", "BertModel", ("BertForMaskedLM", "BertForSequenceClassification", "BertForPreTraining")
    ),
    Family("bert-relu", "BertConfig", "BertModel", options={"hidden_act": "relu", "layer_norm_eps": 0.1}),
    Family("bert-gelu-new", "BertConfig", "BertModel", options={"hidden_act": "gelu_new"}),
    Family("bert-silu", "BertConfig", "BertModel", options={"hidden_act": "silu"}),
    Family(
        "roberta",
        "RobertaConfig",
        "RobertaModel",
        ("RobertaForMaskedLM", "RobertaForSequenceClassification"),
        {"type_vocab_size": 1},
        ROBERTA_SPECIALS,
        has_token_types=False,
    ),
    Family(
        "roberta-two-types",
        "RobertaConfig",
        "RobertaModel",
        options={"type_vocab_size": 2, "pad_token_id": 4},
        specials=ROBERTA_SPECIALS,
    ),
    Family(
        "xlm-roberta",
        "XLMRobertaConfig",
        "XLMRobertaModel",
        ("XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
        {"type_vocab_size": 1},
        ROBERTA_SPECIALS,
        has_token_types=False,
    ),
    Family(
        "camembert",
        "CamembertConfig",
        "CamembertModel",
        ("CamembertForMaskedLM", "CamembertForSequenceClassification"),
        {"type_vocab_size": 1},
        ROBERTA_SPECIALS,
        has_token_types=False,
    ),
    Family(
        "distilbert",
        "DistilBertConfig",
        "DistilBertModel",
        ("DistilBertForMaskedLM", "DistilBertForSequenceClassification", "DistilBertForQuestionAnswering"),
        {"hidden_dim": 56},
        has_token_types=False,
    ),
    Family(
        "distilbert-sinusoidal",
        "DistilBertConfig",
        "DistilBertModel",
        options={"hidden_dim": 56, "sinusoidal_pos_embds": True, "activation": "relu"},
        has_token_types=False,
    ),
    Family(
        "mpnet",
        "MPNetConfig",
        "MPNetModel",
        ("MPNetForMaskedLM", "MPNetForSequenceClassification"),
        specials=ROBERTA_SPECIALS,
        has_token_types=False,
        lengths=(2, 3, 7, 8, 17, 17, 40, 120, 138),
    ),
    Family(
        "electra",
        "ElectraConfig",
        "ElectraModel",
        ("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForSequenceClassification"),
        {"embedding_size": 20},
    ),
    Family("electra-one-size", "ElectraConfig", "ElectraModel", options={"embedding_size": 32}),
    Family(
        "nomic",
        "NomicBertConfig",
        "NomicBertModel",
        ("NomicBertForMaskedLM", "NomicBertForSequenceClassification"),
    ),
    Family(
        "nomic-rope",
        "NomicBertConfig",
        "NomicBertModel",
        options={
            "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        },
    ),
    Family(
        "modernbert",
        "ModernBertConfig",
        "ModernBertModel",
        ("ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
        MODERNBERT_IDS,
        has_token_types=False,
    ),
    Family(
        "modernbert-biases",
        "ModernBertConfig",
        "ModernBertModel",
        options={
            **MODERNBERT_IDS,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_activation": "silu",
            "local_attention": 7,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2 + ["sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        has_token_types=False,
    ),
)

BY_NAME = {family.name: family for family in FAMILIES}
