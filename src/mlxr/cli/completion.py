"""`mlxr completion`: lets a shell complete commands, options, and the names of models."""

import argparse
import importlib
from collections.abc import Iterator, Sequence
from contextlib import suppress

from mlxr.cli.argparse_types import model_name
from mlxr.compiler.cli.parser import CommandParser
from mlxr.compiler.errors import MlxrError

_BASH = r"""_mlxr() {
    local line=${COMP_LINE:0:COMP_POINT} found word=
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] || word=${words[-1]}
    [[ $line == *[[:space:]] ]] && words+=("")
    local begin=
    [[ $word == *[:=]* ]] && begin=${word%"${word##*[:=]}"}
    COMPREPLY=()
    while IFS= read -r found; do
        if [[ $found == :files ]]; then
            while IFS= read -r found; do COMPREPLY+=("${found#"$begin"}"); done < <(compgen -f -- "$word")
        else
            found=${found%%$'\t'*}
            COMPREPLY+=("${found#"$begin"}")
        fi
    done < <(command mlxr completion --words "${words[@]:1}" 2>/dev/null)
}
complete -o bashdefault -o default -F _mlxr mlxr
"""
_ZSH = r"""#compdef mlxr
_mlxr() {
    local line files=
    local -a found
    for line in "${(@f)$(command mlxr completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            files=1
        elif [[ -n $line ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#found )) && _describe -t words mlxr found
    [[ -n $files ]] && _files
    return 0
}
if [[ $funcstack[1] == _mlxr ]]; then _mlxr "$@"; else compdef _mlxr mlxr; fi
"""
_FISH = r"""function __mlxr_complete
    set -l words (commandline -opc)
    set -a words "$(commandline -ct)"
    for line in (command mlxr completion --words $words[2..] 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$(commandline -ct)"
        else
            echo $line
        end
    end
end
complete -c mlxr -f -a '(__mlxr_complete)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_FILES = ":files"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "completion",
        help="let a shell complete commands, options and models",
        description="Print what lets a shell complete the commands, their options, and the names of registered models. "
        'For bash: eval "$(mlxr completion bash)" in ~/.bashrc. For zsh: eval "$(mlxr completion zsh)" in ~/.zshrc, '
        "after compinit. For fish: mlxr completion fish > ~/.config/fish/completions/mlxr.fish.",
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help=", ".join(_SCRIPTS))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    print(_SCRIPTS[args.shell], end="")
    return 0


def print_candidates(words: Sequence[str]) -> int:
    """Prints what may stand for the last word, each with a tab and what it is; `:files` for files. Returns 0.

    Args:
        words: after `mlxr`; the last one is unfinished, perhaps empty.
    """
    *before, begin = words or [""]
    for word, about in _candidates(before, begin):
        if word.startswith(begin) or word == _FILES:
            print(f"{word}\t{' '.join(about.split())}" if word != _FILES else word)
    return 0


def _candidates(before: list[str], begin: str) -> Iterator[tuple[str, str]]:
    from mlxr.cli import COMMANDS  # noqa: PLC0415 (which imports this module by its name)

    name = next((word for word in before if not word.startswith("-")), None)
    if name == "help":
        before = before[before.index("help") + 1 :]
        name = before[0] if before else None
    if name is None:
        yield from ((command, line) for command, (_, line) in COMMANDS.items())
        yield from (("help", "show what a command does"), ("--help", ""), ("--version", ""))
        return
    if name not in COMMANDS:
        return
    commands = CommandParser().add_subparsers()
    importlib.import_module(f"mlxr.cli.{COMMANDS[name][0]}").add_parser(commands)
    parser: argparse.ArgumentParser = commands.choices[name]
    for word in before[before.index(name) + 1 :]:
        inner = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
        if inner is not None and word in inner.choices:
            parser = inner.choices[word]
    option = parser._option_string_actions.get(before[-1])
    if option is not None and option.nargs != 0:
        yield from _values(option)
    elif begin.startswith("-"):
        for text, action in parser._option_string_actions.items():
            yield text, (action.help or "").split("(default")[0]
    else:
        for action in parser._get_positional_actions():
            yield from _values(action)


def _values(action: argparse.Action) -> Iterator[tuple[str, str]]:
    """What may be given for an option or an argument."""
    if isinstance(action, argparse._SubParsersAction):
        yield from ((choice.dest, choice.help or "") for choice in action._choices_actions)
    elif action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    else:
        if action.type is model_name:
            yield from ((name, "a model") for name in _models())
        yield _FILES, ""


def _models() -> list[str]:
    """The names of bundled models that can run, and of those that are registered; none if they cannot be read."""
    from mlxr.compiler.spec.catalog import bundled_specs  # noqa: PLC0415 (slow to import: not for options)
    from mlxr.registry.registry import Registry  # noqa: PLC0415

    names = [name for name, path in bundled_specs().items() if any(path.parent.glob("*.gguf"))]
    with suppress(MlxrError):
        names += Registry().names()
    return names
