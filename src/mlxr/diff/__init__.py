"""What differs between two models: in the spec, graphs, kernels, weights, memory and predicted time.

field_changes   two nested records, field by field
pair_ops        which op of one graph is which op of the other
graph_diff      ops that were added, removed or changed
kernel_sources  the texts and facts of a target's kernels, without what names them
kernel_diff     kernels that were added, removed or changed, and by which lines
weight_diff     tensors whose shape, format or bytes differ
memory_diff     bytes of weights, arena, activations and scratch
time_diff       predicted times of steps
model_diff      all of it
diff_text       as text for people
"""
