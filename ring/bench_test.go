package ring

import (
	"fmt"
	"testing"
)

// benchKeys returns n keys as an application has them; n is a power of two.
func benchKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%016d", i)
	}
	return keys
}

// BenchmarkHash is what BenchmarkOwner is measured against: the goal is that hash and lookup take at most 2.5 times the hash
// alone at 100 members.
func BenchmarkHash(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 17} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			keys, i, sum := benchKeys(n), 0, uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				sum += Hash("product", keys[i&(n-1)])
				i++
			}
			_ = sum
		})
	}
}

func BenchmarkOwner(b *testing.B) {
	for _, members := range []int{3, 10, 100, 1000} {
		r := mustNew(b, named("10.0.0.%d:7946", members))
		for _, n := range []int{1 << 10, 1 << 17} {
			b.Run(fmt.Sprintf("members=%d/keys=%d", members, n), func(b *testing.B) {
				keys, i, sum := benchKeys(n), 0, 0
				b.ReportAllocs()
				for b.Loop() {
					sum += r.Owner(Hash("product", keys[i&(n-1)]))
					i++
				}
				_ = sum
			})
		}
	}
}

func BenchmarkPrefer(b *testing.B) {
	for _, zones := range []int{1, 3} {
		members := named("10.0.0.%d:7946", 100)
		for i := range members {
			members[i].Zone = fmt.Sprint(i % zones)
		}
		r := mustNew(b, members)
		for _, n := range []int{2, 3, 0} {
			b.Run(fmt.Sprintf("zones=%d/n=%d", zones, n), func(b *testing.B) {
				dst, hash := make([]int, 0, 100), uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					hash += 0x9e3779b97f4a7c15
					dst = r.Prefer(dst[:0], hash, n)
				}
			})
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			members := named("10.0.0.%d:7946", n)
			b.ReportAllocs()
			for b.Loop() {
				mustNew(b, members)
			}
		})
	}
}
