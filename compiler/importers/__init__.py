"""Makes a spec from a model's own files: GGUF metadata or Hugging Face's config.json, and the list of tensors.

Importers come before the spec in the pipeline. They are pure functions of plain mappings; the caller reads the files.
Invariants: a key is applied, is one that the reference loaders ignore (data in `models`), or is refused by name; weight
formats are those of the tensors.
"""
