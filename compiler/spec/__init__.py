"""ModelSpec and how it is read: the first stage of the pipeline."""
