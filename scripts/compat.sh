#!/usr/bin/env bash
# Are members built from this checkout and from another revision members of one cluster? TestMixedRevisions takes a cluster of
# processes from the other revision to this one and back, TestMixedRevisionsWithReplicas one that keeps replicas. Needs go and git.
#
#   scripts/compat.sh                 against the previous commit and the last release
#   scripts/compat.sh v0.3.0 v0.4.1   against these: before a release, all that may meet it in a cluster
#
# What is not here is fetched. Of a revision that is named it is a failure when that cannot be done; else the script says so, and
# runs this revision against itself if nothing is left to compare with.
#
# The other revision is built from its own sources with its own go.mod. Only the program around the library, internal/testcluster, is
# this checkout's, so that the test can be extended; where the API has changed so that this does not compile, it is its own too.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export GOWORK=off GIT_TERMINAL_PROMPT=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

here() { git rev-parse -q --verify "$1^{commit}" >/dev/null 2>&1; }

# bring sees to it that a revision is here: the parents of HEAD and tags may be missing in a shallow clone.
bring() {
	here "$1" && return
	git fetch -q --deepen=1 origin "$(git rev-parse HEAD)" 2>/dev/null || true
	here "$1" || git fetch -q --depth=1 origin "refs/tags/$1:refs/tags/$1" 2>/dev/null || true
	here "$1"
}

# overlay prints, for go build -overlay, what replaces internal/testcluster in a tree by this checkout's.
overlay() {
	local file sep='{"Replace": {' replacement
	for file in $({ (cd "$1" && find internal/testcluster -name '*.go'); find internal/testcluster -name '*.go'; } | sort -u); do
		replacement=
		[ ! -e "$file" ] || replacement="$root/$file"
		printf '%s\n"%s": "%s"' "$sep" "$1/$file" "$replacement"
		sep=,
	done
	printf '}}\n'
}

# build builds the member of a tree.
build() {
	local go=(go build -C "$1" -o "$scratch/member")
	overlay "$1" >"$scratch/overlay.json"
	"${go[@]}" -overlay "$scratch/overlay.json" ./internal/testcluster/member 2>"$scratch/errors" && return
	echo "compat: its own program, since this checkout's does not compile there:"
	cat "$scratch/errors"
	"${go[@]}" ./internal/testcluster/member
}

# against runs the test against a tree.
against() {
	echo "compat: against $1"
	build "$2" || { echo "compat: $1 does not build" >&2; return 1; }
	NEARCACHE_OTHER_MEMBER="$scratch/member" go test -count=1 -timeout 3m -run '^TestMixedRevisions' .
}

revisions=("$@")
if [ $# = 0 ]; then
	last=$(git tag --list 'v[0-9]*' --sort=-v:refname --no-contains HEAD 2>/dev/null | sed -n 1p) || true
	[ -n "$last" ] || echo "compat: no tag of an earlier release here"
	for revision in HEAD~1 $last; do
		if bring "$revision"; then
			revisions+=("$revision")
		else
			echo "compat: WARNING: $revision is not here and cannot be fetched: NOT compared with it"
		fi
	done
fi
if [ ${#revisions[@]} = 0 ]; then
	against "itself: there is no other revision" "$root"
	exit
fi
for revision in "${revisions[@]}"; do
	bring "$revision" || { echo "compat: there is no $revision, and it cannot be fetched" >&2; exit 1; }
	tree="$scratch/$(git rev-parse "$revision^{commit}")"
	[ ! -e "$tree" ] || continue # the previous commit is the release
	mkdir "$tree"
	git archive "$revision" | tar -x -C "$tree"
	against "$revision, $(git log -1 --format='%h, %s' "$revision")" "$tree"
done
