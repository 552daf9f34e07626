"""The heads of a model's layers, in words."""

from mlxr.compiler.spec.architecture import Model


def heads_of(model: Model, of: str = "heads", *, head_dim: bool = False, ratio: bool = False) -> str:
    """`6 heads on 2 KV heads`; of layers that differ, all of these numbers, joined by "or"; then recurrent blocks.

    Args:
        model: the model.
        of: what to call the query heads.
        head_dim: whether to say how many elements a head has.
        ratio: whether to say how many queries share a KV head.
    """
    texts = []
    for a in model.attentions:
        text = f"{a.num_heads} {of} on {a.num_kv_heads} KV heads"
        sizes = f" of {a.head_dim}" + (f", values of {a.v_dim}" if a.v_dim and a.latent is None else "")
        texts.append(text + sizes * head_dim + f" (GQA {a.gqa_ratio}:1)" * ratio)
    blocks = dict.fromkeys(block.in_words for block in model.recurrents if block is not None)
    return ", ".join([*([" or ".join(dict.fromkeys(texts))] if texts else []), *blocks])
