"""llama.cpp's logits for a GGUF file, in f32, through llama-cpp-python."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp as api
import numpy as np
import numpy.typing as npt

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def llama_cpp_logits(path: Path, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits after every token, with an f32 cache and without flash attention.

    Raises:
        RuntimeError: llama.cpp cannot load or run the file.
    """
    api.llama_backend_init()
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    settings = api.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 64
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = 0
    settings.swa_full = True
    settings.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = api.llama_init_from_model(model, settings)
    if not context:
        raise RuntimeError(f"llama.cpp has no context for {path}")
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
        batch.seq_id[i][0] = 0
    if api.llama_decode(context, batch):
        raise RuntimeError("llama_decode failed")
    logits = np.stack(
        [np.ctypeslib.as_array(api.llama_get_logits_ith(context, i), (vocab_size,)) for i in range(len(tokens))]
    )
    result = logits.copy()
    api.llama_batch_free(batch)
    api.llama_free(context)
    api.llama_model_free(model)
    return result


def llama_cpp_ids(path: Path) -> Callable[[str, bool], list[int]]:
    """What llama.cpp makes of a text, and whether names of control tokens in it are these, by a file's vocabulary.

    Raises:
        ValueError: llama.cpp does not load it.
    """
    api.llama_log_set(_SILENT, ctypes.c_void_p(0))
    options = api.llama_model_default_params()
    options.vocab_only = True  # api.Llama makes a context all the same, for which there is no model
    model = api.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise ValueError(f"{path}: llama.cpp does not load it")
    vocab = api.llama_model_get_vocab(model)

    def encode(text: str, special: bool) -> list[int]:
        data = text.encode()
        ids = (ctypes.c_int32 * (2 * len(data) + 16))()
        return list(ids[: api.llama_tokenize(vocab, data, len(data), ids, len(ids), False, special)])

    return encode
