# Sourced by scripts/test and scripts/demo: makes the virtual environment they run in.
# Needs Python 3.11 or newer and nothing else; the second call finds everything in place.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
unset PYTHONDONTWRITEBYTECODE  # each of many processes would compile everything it imports

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# make_environment SET: install the checkout, editable, with the packages of
# scripts/requirements/SET.txt: these files, by their hashes, or none. No package is built here, so
# none can run anything while it is installed. `dev` holds all the others, so an environment made
# for the tests serves everything.
make_environment() {
  local set=$1 wanted python
  wanted=$(cat "$root/pyproject.toml" "$root"/scripts/requirements/*.txt | cksum; echo "$root")
  for python in "$venv/.installed-dev" "$venv/.installed-$set"; do
    [ "$(cat "$python" 2>/dev/null)" = "$wanted" ] && [ -x "$venv/bin/python" ] && return
  done
  python=$(find_python) || fail "Python 3.11 or newer is needed and was not found; set PYTHON to it"
  say "Setting up .venv with $("$python" --version) (once; about a minute)"
  [ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv" \
    || fail "$python cannot make a virtual environment; on Debian: apt-get install python3-venv"
  # Not compiled: Python does that at the first import, for what is used, and scripts/test keeps
  # its compiled files elsewhere.
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps
    --no-compile)
  "${pip[@]}" --require-hashes --only-binary :all: \
    --requirement "$root/scripts/requirements/build.txt" \
    --requirement "$root/scripts/requirements/$set.txt" \
    && "${pip[@]}" --no-index --no-build-isolation --editable "$root" \
    || fail "the packages could not be installed; see the lines above"
  printf '%s' "$wanted" > "$venv/.installed-$set"
}
