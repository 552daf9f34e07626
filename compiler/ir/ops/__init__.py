"""The op kinds: the vocabulary of the builder, the passes, the reference ops and the targets.

linear        products with a weight matrix
experts       the choice of experts, and products with their matrices
norm          norms of rows, and of queries and keys
rope          what depends on positions: rotation and temperature
attention     attention over the KV arena, and the split of what it reads
cache         writes into the KV arena
rows          the embedding and other choices of rows
elementwise   everything else, element by element

`product` and `packed_heads` have what several kinds share. Each kind has all of its attributes in files; an attribute
that does nothing has the value that its class names as the default.
"""
