"""A model over several ranks: who has what, the graph of each rank, and the checks of all of them."""
