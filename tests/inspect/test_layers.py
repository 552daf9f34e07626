"""Names of layers, and layers that are alike."""

from mlxr.inspect.layers import alike, is_in_layer, ranges, without_layer


def test_names() -> None:
    assert without_layer("layers.12.mlp.out", 12) == "mlp.out"
    assert without_layer("layers.1.mlp.out", 12) == "layers.1.mlp.out"
    assert without_layer("embedded", None) == "embedded"
    assert is_in_layer("layers.1.mlp.out", 1)
    assert not is_in_layer("layers.12.mlp.out", 1)
    assert not is_in_layer("my.layers.1.x", 1)
    assert not is_in_layer("embedded", None)


def test_layers_of_equal_signature_group_in_order_of_their_first() -> None:
    assert alike({0: "a", 1: "b", 2: "a", 3: "c", 4: "b"}) == [(0, 2), (1, 4), (3,)]


def test_ranges() -> None:
    assert ranges([0, 1, 2, 3]) == "0-3"
    assert ranges([0, 2, 4, 5, 6]) == "0, 2, 4-6"
    assert ranges([7]) == "7"
