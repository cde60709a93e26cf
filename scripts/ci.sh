#!/usr/bin/env bash
# Does what CI does, on any machine with Go, git and, for the race detector, a C compiler. What else it needs it builds
# with go from pinned modules, so the first run takes minutes and later ones much less. PostgreSQL, promtool and Chromium it
# installs on Debian when it runs as root; elsewhere NEARCACHE_SKIP_POSTGRES=1, NEARCACHE_SKIP_PROMTOOL=1 and
# NEARCACHE_SKIP_BROWSER=1 do without.
#
#   scripts/ci.sh              everything
#   scripts/ci.sh lint test    only these sections
#   scripts/ci.sh -l           lists the sections
#
# Runs from any directory, stops at the first failure, and ends with the time that each section took.
# FUZZTIME=15s lets every fuzz target search that long; without it only the committed seeds run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
sections=(tools tidy build arch generated lint test sim repeat fuzz 32bit postgres nested browser catalog compat)

# modules prints the directory of every module of the repository but the pinned tools.
modules() { git ls-files -co --exclude-standard -- 'go.mod' '*/go.mod' | grep -v '^tools/' | xargs -rn1 dirname | sort; }
nested() { modules | grep -vx '\.' || true; }

fail() {
	printf '\nci: FAILED in section %s: %s\n' "${section:-start}" "$*" >&2
	exit 1
}

# lint_tool prints the path of the pinned golangci-lint. It is a module of its own, so that its hundreds of
# dependencies stay out of everybody else's graph; go keeps the binary in its build cache.
lint_tool() { GOWORK=off go -C tools/lint tool -n golangci-lint; }

section_tools() { # what is installed
	command -v git >/dev/null || fail "git is not installed"
	command -v go >/dev/null || fail "go is not installed; go.mod says which version is needed"
	go version
	local cc
	cc=$(go env CC)
	[ "$(go env CGO_ENABLED)" = 1 ] && command -v "${cc%% *}" >/dev/null ||
		fail "the race detector needs cgo and a C compiler ($cc); Debian: apt-get install gcc libc6-dev"
	printf '%s cores, GOMAXPROCS %s\n' "$(getconf _NPROCESSORS_ONLN)" "${GOMAXPROCS:-default}"
	go mod download
	echo "golangci-lint: $(lint_tool)"
}

section_tidy() { # go.mod and go.sum of every module say what the code needs, and go.work names every module
	local m
	for m in $(modules); do
		echo "go mod tidy -diff in $m"
		(cd "$m" && GOWORK=off go mod tidy -diff) || fail "$m/go.mod or go.sum is not tidy: run 'GOWORK=off go mod tidy' there"
		go work edit -json | grep -qE "\"DiskPath\": \"(\./)?${m//./\\.}\"" || fail "go.work does not name $m: run 'go work use ./$m'"
	done
}

section_build() { # every module by itself, as its users see it, without the workspace
	local m
	for m in $(modules); do
		echo "go build, go vet in $m"
		(cd "$m" && GOWORK=off go build ./... && GOWORK=off go vet ./...) || fail "$m does not build"
	done
}

section_arch() { # who imports whom, and that the documents still speak of this code
	go test -count=1 ./internal/archtest || fail "an import, a document or docs/cases.md breaks a rule; the test says which"
}

section_generated() { # generating again changes nothing
	[ -e scripts/generate.sh ] || { echo "no scripts/generate.sh: nothing is generated"; return; }
	scripts/generate.sh -check || fail "generated code is out of date: run scripts/generate.sh and commit what it wrote"
	echo "generated code is up to date"
}

section_lint() { # .golangci.yml, formatting included
	local m tool
	tool=$(lint_tool)
	for m in $(modules); do
		echo "golangci-lint in $m"
		(cd "$m" && "$tool" run --config "$root/.golangci.yml" ./...) || fail "lint in $m"
		(cd "$m" && "$tool" fmt --config "$root/.golangci.yml" --diff) || fail "formatting in $m: run 'golangci-lint fmt'"
	done
}

# race_test runs go test -race with its arguments, and again what crashed the race detector itself: with Go 1.26 it does so where two
# threads run the timers of a testing/synctest bubble (golang/go#78156), so that the second run has one. A test that fails, a race that is
# reported and a panic are final.
race_test() {
	local log packages=("${@}") flags=() try
	while [[ ${packages[0]} == -* ]]; do flags+=("${packages[0]}"); packages=("${packages[@]:1}"); done
	log=$(mktemp)
	for try in 1 2 3; do
		if go test -race -count=1 -timeout 20m "${flags[@]}" "${packages[@]}" >"$log" 2>&1; then
			grep -E '^(ok|\?)' "$log" || true
			rm -f "$log"
			return 0
		fi
		if ! grep -qE '^ThreadSanitizer: CHECK failed|^goroutine 0 .*\[idle, synctest bubble|^SIGSEGV: segmentation violation' "$log" || grep -qE -- '^ *--- FAIL|^WARNING: DATA RACE|^panic: ' "$log"; then
			break
		fi
		mapfile -t packages < <(sed -nE 's/^FAIL[[:space:]]+([^[:space:]]+).*/\1/p' "$log" | sort -u)
		flags+=(-cpu 1)
		grep -E '^(ok|\?)' "$log" || true
		echo "the race detector crashed (golang/go#78156), run $try; again with one thread: ${packages[*]}"
	done
	cat "$log"
	rm -f "$log"
	return 1
}

section_test() { # the README's test command, under the race detector
	local start=$SECONDS
	race_test -cpu=1 ./... || fail "go test -race ./..." # with two threads the root crashes the race detector nearly every time
	[ $((SECONDS - start)) -le 600 ] || echo "WARNING: the core's tests took $((SECONDS - start)) s; they should take less than 600 s on 2 cores"
}

section_sim() { # the protocol under faults, simulated: SIM_SEEDS seeds of every profile, and every rule switched off once
	go test -count=1 -timeout 60m ./internal/sim -sim.seeds "${SIM_SEEDS:-8}" ||
		fail "a simulated run fails; it prints its seed and the events of its key: go test ./internal/sim -run TestProtocol/PROFILE -sim.first SEED -sim.seeds 1 -v"
}

section_repeat() { # the concurrent packages once more, several times, with more and fewer threads
	go test -race -short -count=2 -cpu 1,4 -timeout 8m \
		./hotkey ./internal/clock ./internal/counter ./internal/origin ./internal/shard ./internal/store ./internal/tag ./invalidation ./near ./singleflight ||
		fail "a repeated run failed"
}

section_fuzz() { # the committed seeds of every fuzz target, or a search when FUZZTIME is set
	local dir target
	grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -rn1 dirname | sort -u | while read -r dir; do
		go test -count=1 -run '^Fuzz' "$dir" || fail "a fuzz seed fails in $dir"
		[ -n "${FUZZTIME:-}" ] || continue
		grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //' | while read -r target; do
			go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$dir" || fail "$target found something in $dir"
		done || exit 1
	done || exit 1
}

section_32bit() { # counters, accounting and the wire on a 32-bit machine (case stats-3)
	GOARCH=386 CGO_ENABLED=0 go vet ./... || fail "GOARCH=386 does not compile"
	if GOARCH=386 CGO_ENABLED=0 go test -count=1 -run '^$' ./internal/archtest >/dev/null 2>&1; then
		GOARCH=386 CGO_ENABLED=0 go test -short -count=1 ./... || fail "GOARCH=386 go test"
	else
		echo "this machine does not run 386 programs: compiled only"
	fi
}

section_postgres() { # feed/outbox on a PostgreSQL that the test starts; as root, what is not installed is installed
	if [ -z "${NEARCACHE_SKIP_POSTGRES:-}" ] && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && ! command -v initdb >/dev/null; then
		[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
			fail "there is no PostgreSQL; Debian: apt-get install postgresql. NEARCACHE_SKIP_POSTGRES=1 goes on without"
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends postgresql) >/dev/null || fail "apt-get install postgresql"
	fi
	(cd feed/outbox/postgrestest && race_test ./...) || fail "go test in feed/outbox/postgrestest"
}

section_nested() { # the tests of every other module; as root, promtool is installed, which tests the alert rules
	if [ -z "${NEARCACHE_SKIP_PROMTOOL:-}" ] && ! command -v promtool >/dev/null; then
		[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
			fail "there is no promtool; Debian: apt-get install prometheus. NEARCACHE_SKIP_PROMTOOL=1 goes on without"
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends prometheus) >/dev/null || fail "apt-get install prometheus"
	fi
	local m
	for m in $(nested | grep -vx feed/outbox/postgrestest); do
		echo "go test in $m"
		(cd "$m" && race_test ./...) || fail "go test in $m"
	done
	echo "benchmarks that are cheap run once"
	(cd benchmarks && go test -run '^$' -bench '(NearHit|RemoteGet|Ring|ByteBudget|ColdKey)$/(procs=2|bytes=1024|members=100)$/(goroutines=64|callers=16)$' \
		-benchtime 1x -rounds 1 -slice 20ms .) || fail "a benchmark does not run"
}

section_browser() { # the statistics page in a headless Chromium, which is installed on Debian as root
	[ -z "${NEARCACHE_SKIP_BROWSER:-}" ] || { echo "skipped"; return; }
	if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
		[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
			fail "there is no Chromium; Debian: apt-get install chromium. NEARCACHE_SKIP_BROWSER=1 goes on without"
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium) >/dev/null || fail "apt-get install chromium"
	fi
	go test -count=1 -timeout 3m -run TestInABrowser ./page || fail "the page is not what it should be in a browser"
}

section_catalog() { # the README's first command: a cluster of three processes that judges itself
	[ -d example/catalog ] || { echo "no example/catalog yet"; return; }
	go build -o /dev/null ./example/catalog || fail "example/catalog does not build"
	timeout 120 go run ./example/catalog || fail "go run ./example/catalog: a verdict failed, or it did not end in time"
}

section_compat() { # members built from this checkout and from the previous commit and release, in one cluster
	scripts/compat.sh || fail "this revision and another one do not understand each other, or the other one could not be built"
}

if [ "${1:-}" = -l ]; then
	for section in "${sections[@]}"; do
		printf '%-10s %s\n' "$section" "$(declare -f "section_$section" >/dev/null && sed -n "s/^section_$section() { # //p" "$0")"
	done
	exit
fi

times=()
for section in "${@:-${sections[@]}}"; do
	declare -f "section_$section" >/dev/null || { echo "ci: no section named '$section'; there are: ${sections[*]}" >&2; exit 2; }
done
for section in "${@:-${sections[@]}}"; do
	printf '\n=== %s: %s\n' "$section" "$(sed -n "s/^section_$section() { # //p" "$root/scripts/ci.sh")"
	start=$SECONDS
	"section_$section"
	times+=("$(printf '%-10s %4d s' "$section" $((SECONDS - start)))")
done
printf '\n=== all sections passed\n'
printf '%s\n' "${times[@]}" "$(printf '%-10s %4d s' total $SECONDS)"
