#!/bin/sh
# Installs MLXR for this user: a virtual environment in ~/.local/lib/mlxr, and links to its commands in ~/.local/bin.
# It says what it will do, and asks, before it does anything; sh install.sh --help lists the options.
set -eu

usage() {
  cat <<'HELP'
usage: sh install.sh [--yes] [--dry-run] [--cuda] [--version X.Y.Z] [--from FILE] [--locked FILE]
                     [--prefix DIR] [--bin DIR] [--python PROGRAM]
       sh install.sh --uninstall [--yes] [--dry-run] [--prefix DIR] [--bin DIR]

  --yes             do not ask
  --dry-run         say what would be done, and do nothing
  --cuda            for NVIDIA GPUs: MLX's CUDA build, too (some 2 GB)
  --version X.Y.Z   this release (default: the newest)
  --from FILE       this wheel, source distribution or clone
  --locked FILE     the exact packages of a release, checked by their hashes: its requirements.txt
  --prefix DIR      where to install (default: ~/.local/lib/mlxr)
  --bin DIR         where the commands' links go (default: ~/.local/bin)
  --python PROGRAM  the Python to use, 3.11 or newer (default: the newest that is found)
  --uninstall       remove what this script installed; models, caches and settings stay
HELP
}

fail() {
  echo "install.sh: $1" >&2
  exit 1
}

# Whether a folder of this script is there: a virtual environment with mlxr in it.
is_ours() { [ -f "$prefix/pyvenv.cfg" ] && [ -x "$prefix/bin/mlxr" ]; }

is_our_link() { [ -L "$bin/$1" ] && [ "$(readlink "$bin/$1")" = "$prefix/bin/$1" ]; }

# Asks at the terminal, which is not the standard input where the script itself comes through a pipe.
confirm() {
  if [ "$dry_run" = yes ]; then exit 0; fi
  if [ "$yes" = yes ]; then return; fi
  # shellcheck disable=SC2217
  (true </dev/tty) 2>/dev/null || fail "there is no terminal to ask at: with --yes it does all this without asking"
  printf 'Go on? [y/N] ' >/dev/tty
  read -r answer </dev/tty || answer=no
  case $answer in y | Y | yes) ;; *) fail "nothing was done" ;; esac
}

python_fits() {
  "$1" -c 'import sys; sys.exit(not sys.version_info[:2] >= (3, 11))' 2>/dev/null
}

find_python() {
  for name in python3.15 python3.14 python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null && python_fits "$name"; then
      command -v "$name"
      return
    fi
  done
  fail "there is no Python 3.11 or newer here; where there is one: --python PROGRAM"
}

uninstall() {
  is_ours || fail "$prefix has no MLXR that this script installed"
  echo "This removes MLXR from this user's files:"
  echo "  - the folder $prefix"
  for command in mlxr mlxr-compile; do
    if is_our_link "$command"; then echo "  - the link $bin/$command"; fi
  done
  echo "Models, caches and settings stay: ~/.cache/mlxr, ~/.local/share/mlxr, on a Mac ~/Library/Application Support/mlxr."
  confirm
  for command in mlxr mlxr-compile; do
    if is_our_link "$command"; then rm "$bin/$command"; fi
  done
  rm -rf "$prefix"
  echo "MLXR is removed."
}

# All of it is read before any of it is run: a download that breaks off does nothing.
main() {
  yes=no dry_run=no cuda='' version='' from='' locked='' python='' action=install
  prefix=${HOME:?}/.local/lib/mlxr bin=$HOME/.local/bin
  while [ $# -gt 0 ]; do
    case $1 in
    --yes) yes=yes ;;
    --dry-run) dry_run=yes ;;
    --cuda) cuda='[cuda]' ;;
    --uninstall) action=uninstall ;;
    -h | --help)
      usage
      exit 0
      ;;
    --version | --from | --locked | --prefix | --bin | --python)
      [ $# -gt 1 ] || fail "$1 needs a value"
      case $1 in
      --version) version=$2 ;;
      --from) from=$2 ;;
      --locked) locked=$2 ;;
      --prefix) prefix=$2 ;;
      --bin) bin=$2 ;;
      --python) python=$2 ;;
      esac
      shift
      ;;
    *)
      usage >&2
      fail "there is no option $1"
      ;;
    esac
    shift
  done
  for folder in "$prefix" "$bin"; do
    case $folder in /*) ;; *) fail "$folder: --prefix and --bin take absolute paths" ;; esac
  done

  if [ "$action" = uninstall ]; then
    uninstall
    exit 0
  fi

  case $(uname -s)-$(uname -m) in
  Linux-x86_64 | Linux-aarch64 | Darwin-arm64) ;;
  *) fail "MLXR runs on Linux (x86-64 and ARM) and on Apple silicon, not on $(uname -s) $(uname -m)" ;;
  esac
  if [ -n "$python" ]; then
    command -v "$python" >/dev/null || fail "there is no $python"
    python_fits "$python" || fail "$python is no Python 3.11 or newer"
  else
    python=$(find_python)
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments; on Debian and Ubuntu: sudo apt-get install python3-venv"
  if [ -n "$from" ]; then
    [ -z "$version" ] || fail "--from and --version do not go together"
    [ -e "$from" ] || fail "there is no $from"
    case $from in /*) ;; *) from=$PWD/$from ;; esac
    package=$from$cuda
  else
    package=mlxr$cuda${version:+==$version}
  fi
  if [ -n "$locked" ]; then
    [ -f "$locked" ] || fail "there is no $locked"
  fi
  if [ -e "$prefix" ] && ! is_ours; then
    fail "$prefix is there and is no MLXR that this script installed; another place: --prefix DIR"
  fi
  for command in mlxr mlxr-compile; do
    if [ -e "$bin/$command" ] || [ -L "$bin/$command" ]; then
      is_our_link "$command" || fail "$bin/$command is there and is not this script's; another place: --bin DIR"
    fi
  done

  echo "This installs MLXR for this user, without root:"
  if is_ours; then
    echo "  1. uses the virtual environment $prefix, which is there"
  else
    echo "  1. makes a virtual environment in $prefix, with $python"
  fi
  echo "  2. has its pip install $package from the package index that pip uses (some 300 MB)"
  if [ -n "$locked" ]; then echo "     with exactly the packages of $locked, checked by their hashes"; fi
  echo "  3. links mlxr and mlxr-compile into $bin"
  echo "It changes nothing else. To remove it: sh install.sh --uninstall"
  confirm

  if ! is_ours; then
    trap 'exit 130' INT TERM
    trap 'rm -rf "$prefix"; echo "install.sh: it failed; $prefix is removed again" >&2' EXIT
    "$python" -m venv "$prefix"
  fi
  pip() { "$prefix/bin/python" -m pip --disable-pip-version-check "$@"; }
  if [ -n "$locked" ]; then
    pip install --quiet --require-hashes --requirement "$locked"
    pip install --quiet --upgrade --no-deps "$package"
  else
    pip install --quiet --upgrade "$package"
  fi
  installed=$("$prefix/bin/mlxr" --version)
  mkdir -p "$bin"
  for command in mlxr mlxr-compile; do ln -sf "$prefix/bin/$command" "$bin/$command"; done
  trap - EXIT

  echo "$installed is installed."
  case :$PATH: in
  *":$bin:"*) ;;
  *) echo "$bin is not on your PATH. For this shell, and in your shell's profile: export PATH=\"$bin:\$PATH\"" ;;
  esac
  echo "Try it: mlxr run storyteller --prompt \"Once upon a time\""
}

main "$@"
