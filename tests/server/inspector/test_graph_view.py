"""The graphs as the page draws them, compared with the artifact's own."""

import pytest

import mlxr
from mlxr.compiler.artifact import Artifact
from mlxr.server.inspector.graph_view import GraphsView, graphs_view
from mlxr_tests.specs import compiled, small_spec


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(small_spec())


@pytest.fixture(scope="module")
def view(artifact: Artifact) -> GraphsView:
    return graphs_view(artifact)


def test_nodes_are_ops_of_one_layer_and_of_none(artifact: Artifact, view: GraphsView) -> None:
    assert [graph.name for graph in view.graphs] == ["source", "decode", "prefill"]
    for graph in view.graphs:
        whole = artifact.graph(graph.name)
        assert {node.id for node in graph.nodes} == {op.name for op in whole.ops if op.layer in (None, 0)}
        assert graph.num_ops == len(whole)
        (frame,) = graph.frames
        assert frame.layers == (0, 1)
        for node in graph.nodes:
            op = whole.op(node.id)
            assert (node.kind, node.family, node.attributes) == (op.kind, op.attrs.family, op.attrs.attributes)
            assert {port.port: port.value for port in node.inputs} == op.inputs
            inside = frame.y < node.y and node.y + node.height < frame.y + frame.height
            assert inside == (node.layer == 0)


def test_shapes(view: GraphsView) -> None:
    decode = view.graphs[1]
    qkv = next(node for node in decode.nodes if node.label == "attention.qkv_projected")
    ports = {port.port: port for port in (*qkv.inputs, *qkv.outputs)}
    assert ports["weight"].shape == ((6 + 2 * 2) * 40, 48) and ports["weight"].dtype == "f32"
    assert ports["weight"].tensors == tuple(f"layers.0.attention.{part}" for part in "qkv")
    assert ports["out"].shape == ("tokens", 400) and ports["x"].node == "embedded"
    assert {part.id for part in qkv.parts} == {
        *("layers.0.attention.normed", "layers.0.attention.q_projected"),
        *("layers.0.attention.k_projected", "layers.0.attention.v_projected"),
    }


def test_each_source_op_is_a_part_of_one_op_of_each_fused_graph(view: GraphsView) -> None:
    source, *fused = view.graphs
    for graph in fused:
        parts = [part.id for node in graph.nodes for part in node.parts]
        assert sorted(parts) == sorted(node.id for node in source.nodes)
        owners = {part.id: node.id for node in graph.nodes for part in node.parts}
        assert {node.id: node.fused_into[graph.name] for node in source.nodes} == owners


def test_boxes_lie_apart_inside_the_picture(view: GraphsView) -> None:
    boxes = [node for graph in view.graphs for node in graph.nodes]
    for i, box in enumerate(boxes):
        assert 0 <= box.x <= view.width - box.width and 0 <= box.y <= view.height - box.height
        for other in boxes[:i]:
            apart = box.x >= other.x + other.width or other.x >= box.x + box.width
            assert apart or box.y >= other.y + other.height or other.y >= box.y + box.height


def test_edges_join_the_ops_that_they_name(artifact: Artifact, view: GraphsView) -> None:
    for graph in view.graphs:
        whole = artifact.graph(graph.name)
        nodes = {node.id: node for node in graph.nodes}
        values = [edge for edge in graph.edges if edge.kind == "value" and edge.source and edge.target]
        drawn = {(edge.source, edge.target, edge.value) for edge in values}
        reads = {
            (maker.name, node.id, port.value)
            for node in graph.nodes
            for port in node.inputs
            if port.role == "activation" and (maker := whole.producer(port.value)) and maker.name in nodes
        }
        assert reads <= drawn
        for edge in values:
            assert edge.source and edge.target
            x, y = map(float, edge.path[1:].partition("L")[0].split())
            box = nodes[edge.source]
            assert box.x <= x <= box.x + box.width and abs(y - box.y - box.height) < 1
        accesses = sum(node.arena != "none" for node in graph.nodes)
        assert sum(edge.kind == "arena" for edge in graph.edges) == accesses


def test_layers_that_differ_are_drawn_each() -> None:
    types = {"model__layer_types": {"a": {}, "b": {"attention": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40}}}}
    types["model__layer_types"]["b"]["attention"]["sliding_window"] = 16  # type: ignore[index]
    view = graphs_view(compiled(small_spec(**types, model__layer_pattern=["a", "b"], model__num_layers=3)))
    assert [frame.layers for frame in view.graphs[0].frames] == [(0, 2), (1,)]


def test_a_large_model_is_small() -> None:
    assert len(graphs_view(mlxr.compile("llama-3.1-8b")).model_dump_json()) < 200_000
