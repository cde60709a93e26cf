module github.com/nearcache/nearcache

go 1.26.0
