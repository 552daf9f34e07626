"""The data of the page's inspector, as records that FastAPI shows in its OpenAPI document.

graph_view     the op graphs before and after fusion, placed, so that the page only draws them
inspector      all that is asked of one artifact: graphs, ops, kernels; it keeps what is slow to compute
op_view        an op with its launches: geometry with reasons, bytes, FLOPs, predicted and measured times
kernel_view    a kernel with its source, highlighted
measured       the times that `mlxr tune` has left in the artifact
arena_view     the blocks of the arena, the slots of states, and whose they are, now
history        samples of an engine's counters since it was loaded, and rates between them
model_view     models, loaded or not, and how far loading is
watched        one loaded model, watched: its inspectors and its history
router         the routes, under /inspector
"""
