//go:build race

package nearcache_test

const raceEnabled = true
