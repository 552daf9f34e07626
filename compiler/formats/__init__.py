"""How numbers lie in memory: element types, weight formats, layouts of weights and of the KV arena."""
