"""Embeddings of each layer in a spec: what a layer adds of a token's id, beside its blocks."""

from mlxr.compiler.spec.fields import Count, Positive
from mlxr.compiler.spec.record import Record


class LayerEmbeddings(Record):
    """Vectors of each token, one for each layer, made before the first one.

    They are scale x (norm(projection_scale x projection(x)) + table_scale x table[id]), and x is the scaled embedding.
    Behind its blocks, a layer has x + norm(project(activation(gate(x)) * vector)), with the activation of its MLP.
    """

    width: Count
    """Elements of a vector: a multiple of 8."""
    table_scale: Positive = 1.0
    """Factor of the table's rows."""
    projection_scale: Positive = 1.0
    """Factor of the projection, before its norm."""
    scale: Positive = 1.0
    """Factor of the sum."""
