"""Other engines on the same weights: models to compare on, a worker process for each engine, and the report."""
