"""Names of the files and metadata keys of models that code refers to.

The keys of a model's architecture are not here: models/importers and models/families say what they mean.
"""

CONFIG_FILE = "config.json"
"""The file that describes a model in a Hugging Face folder."""
GENERATION_FILE = "generation_config.json"
"""The file of a Hugging Face folder that says how answers are generated: sampling, and the tokens that end them."""
ST_MODULES, ST_POOLING = "modules.json", "1_Pooling/config.json"
"""The files in which sentence-transformers says how a model makes embeddings."""
OLDER_VOCABULARIES = (
    "spiece.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
)
"""Files of a tokenizer that are read where there is no tokenizer.json."""
DESCRIBING_FILES = (
    CONFIG_FILE,
    GENERATION_FILE,
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    *OLDER_VOCABULARIES,
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    ST_MODULES,
    ST_POOLING,
)
"""All files of a Hugging Face folder that are read beside the weights."""
CONFIG_BYTES = 1 << 20
"""The largest size of config.json that is read."""
TEXT_SECTION = "text_config"
"""Its key for the text model, where it describes several."""
QUANTISATION = ("quantization", "quantization_config")
"""Its keys for how weights are quantised: mlx-lm's and Hugging Face's."""

PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Files that can run code when they are read."""
GGUF_MAGIC = b"GGUF"
"""The first bytes of a GGUF file."""

ARCHITECTURE = "general.architecture"
"""The GGUF key of the architecture's name; that name is the first part of the keys of its properties."""
FILE_TYPE = "general.file_type"
"""The GGUF key of the mixture of formats that its weights have, as a number of llama.cpp's."""
SAMPLING = "general.sampling."
"""The first part of the GGUF keys of how the model's tokens are chosen."""
ALIGNMENT = "general.alignment"
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
"""GGUF keys of a model in several files: this file's number (from 0), the number of files, and of tensors in all."""
TOKENIZER = "tokenizer.ggml."
"""The first part of the GGUF keys of the vocabulary."""
CHAT_TEMPLATE = "tokenizer.chat_template"
