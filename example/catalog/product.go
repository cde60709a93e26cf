package main

import (
	"fmt"
	"strings"
)

// product is what the shop sells and the cache keeps.
type product struct {
	ID      string
	Version uint64 // grows with every change of the price
	Name    string
	Cents   int64
	Text    string
}

// productAt returns product id as it is in the given version. All fields follow from these two, so that any reader can tell a right answer
// from a wrong, torn or mixed-up one.
func productAt(id string, version uint64) product {
	x := version
	for _, b := range []byte(id) {
		x = mix(x + uint64(b))
	}
	return product{
		ID:      id,
		Version: version,
		Name:    "Product " + id,
		Cents:   99 + int64(x%100_000),
		Text:    strings.Repeat("A product of the shop. ", 4+int(x>>32%8)),
	}
}

// check returns an error if p is not what the origin had for id in some version.
func (p product) check(id string) error {
	if p.ID != id {
		return fmt.Errorf("asked for product %s, got %s", id, p.ID)
	}
	if p != productAt(p.ID, p.Version) {
		return fmt.Errorf("product %s is mixed up", id)
	}
	return nil
}
