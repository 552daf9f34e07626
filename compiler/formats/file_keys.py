"""Keys of the files that describe a model, where code asks for them by name.

What the keys of a model's architecture mean is data, in models/importers and models/families.
"""

CONFIG_FILE = "config.json"
"""The file that describes a model in a Hugging Face folder."""
CONFIG_BYTES = 1 << 20
"""How large it may be."""
QUANTISATION = ("quantization", "quantization_config")
"""Keys of it that say how weights are quantised: as mlx-lm and as Hugging Face write it."""

ARCHITECTURE = "general.architecture"
"""The GGUF key of the architecture's name, with which the keys of its properties begin."""
ALIGNMENT = "general.alignment"
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
"""In a GGUF file that is one of several of a model: which it is (from 0), how many there are, tensors in all."""
TOKENIZER = "tokenizer.ggml."
"""With this the GGUF keys of the vocabulary begin."""
CHAT_TEMPLATE = "tokenizer.chat_template"
