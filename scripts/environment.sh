# Sourced by scripts/test and scripts/demo: makes the virtual environment they run in.
# Needs Python 3.11 or newer and nothing else; the second call finds everything in place.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"

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

# make_environment EXTRAS: install the checkout, editable, with these extras, at tested versions.
make_environment() {
  local extras=$1 python wanted stamp="$venv/.installed-$1"
  wanted=$(cat "$root/pyproject.toml" "$root/scripts/constraints.txt" | cksum; echo "$root")
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  python=$(find_python) || fail "Python 3.11 or newer is needed and was not found; set PYTHON to it"
  say "Setting up .venv with $($python --version) (once; about a minute)"
  "$python" -m venv --clear "$venv" \
    || fail "$python cannot make a virtual environment; on Debian: apt-get install python3-venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "$root/scripts/constraints.txt" --editable "$root[$extras]" \
    || fail "the packages could not be installed; see the lines above"
  printf '%s' "$wanted" > "$stamp"
}
