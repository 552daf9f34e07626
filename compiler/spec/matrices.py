"""The weight matrices of a model by their canonical names, by which families, formats and plans know them."""

from mlxr.compiler.spec.architecture import Model
from mlxr.compiler.spec.attention import Attention
from mlxr.compiler.spec.eagle import NUM_TAPS, Eagle
from mlxr.compiler.spec.latent import Latent
from mlxr.compiler.spec.mlp import Mlp

Shapes = dict[str, tuple[int, int]]


def matrix_shapes(model: Model) -> Shapes:
    """Every weight matrix: rows (outputs) and columns (inputs).

    The experts of a layer share one matrix: all rows of the first expert, then those of the second, and so on.
    """
    hidden = model.hidden_size
    shapes = {"embedding": (model.vocab_size, hidden)}
    if model.learned_positions is not None:
        shapes["position_embedding"] = (model.learned_positions, hidden)
    if model.token_types is not None:
        shapes["token_type_embedding"] = (model.token_types, hidden)
    vectors = model.layer_embeddings
    if vectors is not None:
        all_layers = model.num_layers * vectors.width
        shapes |= {"layer_embedding": (model.vocab_size, all_layers), "layer_projection": (all_layers, hidden)}
    for index, layer in enumerate(model.all_layers if model.eagle is None else model.layers):
        of_layer = {} if layer.attention is None else _attention(layer.attention, hidden, hidden)
        of_layer |= {} if layer.recurrent is None else layer.recurrent.matrices(hidden)
        of_layer |= {} if layer.mlp is None else _mlp(layer.mlp, hidden)
        if index == model.num_layers:
            of_layer["mtp.join"] = (hidden, 2 * hidden)
        if vectors is not None:
            of_layer |= {"vector.gate": (vectors.width, hidden), "vector.project": (hidden, vectors.width)}
        shapes |= {f"layers.{index}.{role}": shape for role, shape in of_layer.items()}
    if model.eagle is not None:
        shapes |= {f"layers.{model.num_layers}.{role}": shape for role, shape in _eagle(model.eagle, model).items()}
    return shapes if model.tie_embeddings else shapes | {"output": (model.vocab_size, hidden)}


def _eagle(head: Eagle, model: Model) -> Shapes:
    """Of a head of other files; ids of its embeddings are the model's, those of its output are its own."""
    hidden = head.hidden_size
    shapes = _attention(head.attention, hidden, head.widest) | _mlp(head.mlp, hidden)
    shapes["eagle.fc"] = (hidden, NUM_TAPS * model.hidden_size)
    shapes |= {"eagle.embedding": (model.vocab_size, hidden)} if head.embedding else {}
    return shapes | ({"eagle.output": (head.vocab_size, hidden)} if head.output else {})


def _attention(attention: Attention, hidden: int, width: int) -> Shapes:
    """Of a block that reads `width` columns."""
    if attention.latent is not None:
        return _latent(attention.num_heads, attention.latent, hidden)
    heads, kv_heads = (count * attention.head_dim for count in (attention.num_heads, attention.num_kv_heads))
    shapes = {"attention.q": (heads, width)}
    if attention.gate_size:
        shapes["attention.gate"] = (attention.num_heads * attention.gate_size, width)
    if attention.kv_from is None:
        shapes["attention.k"] = (kv_heads, width)
        if not attention.values_from_keys:
            shapes["attention.v"] = (attention.num_kv_heads * attention.result_dim, width)
    return shapes | {"attention.o": (hidden, attention.num_heads * attention.result_dim)}


def _latent(num_heads: int, latent: Latent, hidden: int) -> Shapes:
    """Of latent attention; `k_b` and `v_b` have the rows of one head after those of the other."""
    queries, rank = num_heads * latent.qk_dim, latent.q_rank
    shapes = {"attention.q": (queries, hidden)}
    if rank is not None:
        shapes = {"attention.q_a": (rank, hidden), "attention.q_b": (queries, rank)}
    return shapes | {
        "attention.kv_a": (latent.row_dim, hidden),
        "attention.k_b": (num_heads * latent.kv_rank, latent.nope_dim),
        "attention.v_b": (num_heads * latent.v_dim, latent.kv_rank),
        "attention.o": (hidden, num_heads * latent.v_dim),
    }


def _mlp(mlp: Mlp, hidden: int) -> Shapes:
    experts = mlp.experts
    if experts is None:
        return _network("mlp", mlp, mlp.intermediate_size, hidden)
    shapes = {"mlp.router": (experts.count, hidden)}
    shapes |= _network("mlp.experts", mlp, mlp.intermediate_size, hidden, experts.count)
    if experts.shared is not None:
        shapes |= _network("mlp.shared", mlp, experts.shared.intermediate_size, hidden)
        if experts.shared.gate:
            shapes["mlp.shared.router"] = (1, hidden)
    return shapes


def _network(prefix: str, mlp: Mlp, width: int, hidden: int, count: int = 1) -> Shapes:
    gate = {f"{prefix}.gate": (count * width, hidden)} if mlp.gated else {}
    return gate | {f"{prefix}.up": (count * width, hidden), f"{prefix}.down": (count * hidden, width)}
