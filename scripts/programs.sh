# Sourced by scripts/test: installs the programs that some tests run against, axe-core, and the
# packages of the device in JavaScript.
# What cannot be installed is left in `missing`, each with its reason.

missing=()

# Programs and the system's packages that hold them.
system_packages="mosquitto mosquitto
strace strace
postgres postgresql
chromium chromium
chromedriver chromium-driver
systemd-analyze systemd
node nodejs
npm npm
prometheus prometheus
promtool prometheus"

system_programs() {
  local program package
  while read -r program package; do
    has_program "$program" && continue
    apt_install "$package" < /dev/null
    has_program "$program" || missing+=("$program ($reason)")
  done <<< "$system_packages"
}

# Debian keeps PostgreSQL off the path, by version.
has_program() {
  command -v "$1" > /dev/null || [ -x "/usr/sbin/$1" ] \
    || compgen -G "/usr/lib/postgresql/*/bin/$1" > /dev/null
}

# apt_install PACKAGE: waits for another apt-get, tries again after a failed download, and leaves
# in `reason` why it did not succeed.
apt_install() {
  local attempt log
  reason="apt-get needs root"
  [ "$(id -u)" -eq 0 ] || return 0
  reason="there is no apt-get here"
  command -v apt-get > /dev/null || return 0
  say "Installing $1 with apt-get"
  log=$(mktemp)
  for attempt in 1 2 3 4 5; do
    [ "$attempt" = 1 ] || sleep $((attempt * 5))
    { apt_update && apt_get install -y --no-install-recommends "$1"; } > "$log" 2>&1 && break
  done
  reason="apt-get: $(grep '^E:' "$log" | head -n 1)" || true
  rm "$log"
}

# The lists are fetched once. Their lock is not waited for by apt-get, hence the attempts above;
# that of dpkg is.
apt_update() { [ -n "${lists_fetched:-}" ] || { apt_get update && lists_fetched=yes; }; }

apt_get() {
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# The accessibility rules that the tests of the page run in the browser.
accessibility_rules() {
  local wanted=4.14.0 place="$venv/node" attempt
  reason="npm is not installed"
  for attempt in 1 2 3; do
    grep -q "\"version\": \"$wanted\"" "$place/node_modules/axe-core/package.json" 2> /dev/null \
      && return 0
    command -v npm > /dev/null || break
    say "Installing axe-core with npm"
    reason=$(npm install --no-audit --no-fund --ignore-scripts --prefix "$place" \
      "axe-core@$wanted" 2>&1 | grep -m 1 -i error) || true
  done
  missing+=("axe-core ($reason)")
}

# What examples/javascript-device needs: the files that its lock lists, by their hashes.
javascript_packages() {
  local example="$root/examples/javascript-device" place="$venv/javascript-device" attempt
  reason="npm is not installed"
  for attempt in 1 2 3; do
    cmp -s "$example/package-lock.json" "$place/installed" && return 0
    command -v npm > /dev/null || break
    say "Installing the packages of the device in JavaScript with npm"
    mkdir -p "$place" && cp "$example"/package*.json "$place"
    reason=$(npm ci --no-audit --no-fund --ignore-scripts --prefix "$place" 2>&1) \
      && cp "$example/package-lock.json" "$place/installed"
    reason=$(grep -m 1 -i error <<< "$reason") || true
  done
  missing+=("javascript-device ($reason)")
}
