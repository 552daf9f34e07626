"""Names of layers, and layers that are alike."""

from mlxr.inspect.layers import alike, in_layer, layer_of, ranges, without_layer


def test_names() -> None:
    assert layer_of("layers.12.mlp.out") == 12
    assert layer_of("embedded") is None
    assert layer_of("my.layers.1.x") is None
    assert without_layer("layers.12.mlp.out") == "mlp.out"
    assert in_layer("layers.12.mlp.out", 3) == "layers.3.mlp.out"


def test_layers_of_equal_signature_group_in_order_of_their_first() -> None:
    assert alike({0: "a", 1: "b", 2: "a", 3: "c", 4: "b"}) == [(0, 2), (1, 4), (3,)]


def test_ranges() -> None:
    assert ranges([0, 1, 2, 3]) == "0-3"
    assert ranges([0, 2, 4, 5, 6]) == "0, 2, 4-6"
    assert ranges([7]) == "7"
