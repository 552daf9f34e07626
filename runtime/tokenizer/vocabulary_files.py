"""Loads the vocabularies of folders without a tokenizer.json: vocab.json with merges.txt (BPE), vocab.txt (WordPiece).

What the two files leave open, the class that reads them in transformers decides; tokenizer_config.json names it.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.json_file import read_json_object, read_small_file
from mlxr.runtime.tokenizer.hub_files import NamedTokens, read_named_tokens
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors
from mlxr.runtime.tokenizer.pre_tokenizers import pre_tokenizer
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens

_MAX_BYTES = 64 << 20
_SPLITS = (  # by what the class's name, or config.json's model type, begins with
    ("qwen3_5", "qwen35"),
    ("qwen", "qwen2"),
    ("gptneox", "olmo"),
    ("gpt_neox", "olmo"),
    ("cohere", "command-r"),
)
_AROUND = ("roberta", "xlm", "longformer", "bart")  # these put <s> and </s> around a text


def load_byte_level(vocab: Path, merges: Path) -> LibraryTokenizer:
    """The byte-level BPE tokenizer of a vocab.json and its merges.txt.

    Raises:
        TokenizerError: a file is corrupt.
    """
    named = read_named_tokens(vocab.parent)
    ids = read_json_object(vocab, _MAX_BYTES, TokenizerError)
    lines = _lines(merges)
    if lines and lines[0].startswith("#version"):
        del lines[0]
    kind = _kind(named, vocab.parent)
    split = pre_tokenizer(next((name for begin, name in _SPLITS if kind.startswith(begin)), "gpt-2"), str(vocab))
    prefix = bool(named.settings.get("add_prefix_space"))
    with library_errors(str(vocab)):
        pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
        library = Library(models.BPE(vocab=ids, merges=pairs))
        library.normalizer = normalizers.NFC() if split.composed else None
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *([pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)] if prefix else []),
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ][: 1 if prefix else None]
        )
        library.decoder = decoders.ByteLevel()
        _add_tokens(library, named)
        bos, eos = named.bos, named.eos
        begin_id, end_id = (None if token is None else library.token_to_id(token) for token in (bos, eos))
        if kind.startswith(_AROUND) and begin_id is not None and end_id is not None:
            library.post_processor = processors.RobertaProcessing((str(eos), end_id), (str(bos), begin_id))
    return LibraryTokenizer(library, str(vocab), _special(library, named))


def load_wordpiece(vocab: Path) -> LibraryTokenizer:
    """The WordPiece tokenizer of a vocab.txt, which has a token on each line, as BERT's.

    Raises:
        TokenizerError: it is corrupt.
    """
    named = read_named_tokens(vocab.parent)
    ids = {token: token_id for token_id, token in enumerate(_lines(vocab))}
    settings, unknown = named.settings, named.unknown or "[UNK]"
    around = [_named(settings, key, name) for key, name in (("sep_token", "[SEP]"), ("cls_token", "[CLS]"))]
    if unknown not in ids or not all(token in ids for token in around):
        raise TokenizerError(f"{vocab}: lacks one of {unknown}, {around[0]} and {around[1]}; is it BERT's?")
    with library_errors(str(vocab)):
        library = Library(models.WordPiece(vocab=ids, unk_token=unknown))
        library.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
            strip_accents=settings.get("strip_accents"),
            lowercase=bool(settings.get("do_lower_case", True)),
        )
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece()
        usual = [_named(settings, key, name) for key, name in (("pad_token", "[PAD]"), ("mask_token", "[MASK]"))]
        own = [token for token in (unknown, *around, *usual) if token in ids]
        library.add_special_tokens([AddedToken(token, normalized=False) for token in own])
        _add_tokens(library, named)
        sep, cls = ((token, ids[token]) for token in around)
        library.post_processor = processors.BertProcessing(sep, cls)
    return LibraryTokenizer(library, str(vocab), _special(library, named))


def _named(settings: object, key: str, usual: str) -> str:
    value = settings.get(key) if isinstance(settings, dict) else None
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else usual


def _add_tokens(library: Library, named: NamedTokens) -> None:
    """Adds tokens in the order of their ids, which the library counts up from its vocabulary's end."""
    for token_id, token in sorted(named.added.items()):
        library.add_tokens(
            [AddedToken(token.text, special=token.special, normalized=False, lstrip=token.lstrip, rstrip=token.rstrip)]
        )
        if library.token_to_id(token.text) != token_id:
            raise TokenizerError(
                f"the added token {token.text!r:.60} has the id {token_id}, but {library.token_to_id(token.text)} is "
                "the next one; with the model's own tokenizer.json it works"
            )
    roles = [token for token in (named.bos, named.eos, named.unknown) if token is not None]
    library.add_special_tokens([token for token in roles if library.token_to_id(token) is not None])


def _special(library: Library, named: NamedTokens) -> SpecialTokens:
    bos, eos = (None if token is None else library.token_to_id(token) for token in (named.bos, named.eos))
    return SpecialTokens(bos, eos, named.end_ids, named.add_bos, named.add_eos)


def _kind(named: NamedTokens, folder: Path) -> str:
    """The name of the tokenizer's class, or else the model's type, in small letters."""
    if named.kind is not None:
        return named.kind.lower()
    path = folder / file_keys.CONFIG_FILE
    config = read_json_object(path, file_keys.CONFIG_BYTES, TokenizerError) if path.is_file() else {}
    return str(config.get("model_type", "")).lower()


def _lines(path: Path) -> list[str]:
    data = read_small_file(path, _MAX_BYTES, TokenizerError, "a vocabulary")
    try:
        lines = data.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from error
    return lines[:-1] if lines[-1] == "" else lines
