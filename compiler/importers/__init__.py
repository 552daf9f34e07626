"""Makes a spec of what a model's own files say: GGUF metadata, or Hugging Face's config.json, and the list of tensors.

Before the spec in the pipeline: pure functions of plain mappings, so that whoever reads the files decides how.
Invariants: every key is either read, known to be harmless (data in `models/importers`), or refused by name; weight
formats are those of the tensors.
"""
