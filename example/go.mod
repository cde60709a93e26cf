module github.com/nearcache/nearcache/example

go 1.26.0

require github.com/klauspost/compress v1.20.4

replace github.com/nearcache/nearcache => ../
