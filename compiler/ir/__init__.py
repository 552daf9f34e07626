"""The op graph: ops, values, shape rules and the verifier."""
