package testcluster

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// Value is the value of a version of a key. It says whose it is and whether it is whole: see Version.
func Value(key string, version int) string {
	body := strconv.Itoa(version) + "|" + key
	return fmt.Sprintf("%08x|%s", crc32.ChecksumIEEE([]byte(body)), body)
}

// Version returns the version of a value that Value made for key. Any other value, another key's included, is an error.
func Version(key, value string) (int, error) {
	_, body, _ := strings.Cut(value, "|")
	number, _, _ := strings.Cut(body, "|")
	version, err := strconv.Atoi(number)
	if err != nil || Value(key, version) != value {
		return 0, fmt.Errorf("%.100q is no value of %q", value, key)
	}
	return version, nil
}
