"""The Metal kernels, one per template and file: a context, and the rule that lowers an op to it.

Where several kernels can do the same work, the rule that chooses among them has a file of its own: `projection`,
`routed_experts`, `combined_experts`, `decode_attention` and `prefill_attention`. `library_matmul` and
`library_attention` add calls of MLX in their place.
"""
