"""The op kinds: the vocabulary of the builder, the passes, the reference ops and the targets.

linear        products with a weight matrix
experts       the choice of experts, and products with their matrices
norm          norms of rows, and of queries and keys
rope          ops that depend on positions: rotation and temperature
attention     attention over the KV arena, and the split of the packed projection that it reads
cache         writes into the KV arena
rows          the embedding and other choices of rows
elementwise   everything else, element by element

`product` and `packed_heads` are shared by several kinds. Files state all attributes of a kind; an attribute without
effect has the default of its class.
"""
