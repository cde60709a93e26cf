#!/bin/sh
# Lints proto/ and writes the Go code generated from it. The tools and their versions are those of tools/gen and tools/buf; after
# their modules have been downloaded nothing is fetched. With -check it fails if the committed code is not what comes out.
set -eu
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT

export GOWORK=off
go -C tools/gen build -o "$bin/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
go -C tools/buf build -o "$bin/" github.com/bufbuild/buf/cmd/buf

export PATH="$bin:$PATH" BUF_CACHE_DIR="$bin/cache"
cd proto
buf lint
case ${1-} in
-check)
	buf generate -o "$bin/out"
	diff -r -x '*.proto' -x 'buf*.yaml' . "$bin/out"
	;;
*)
	buf generate
	;;
esac
