package hotkey

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// naive counts every key exactly, in the same windows.
type naive map[string]float64

func (n naive) halve() {
	for key := range n {
		n[key] /= 2
	}
}

// check compares what k says of its keys with the exact rates.
func (n naive) check(t *testing.T, k *Keys) {
	t.Helper()
	const rounding = 1e-9
	listed := make(map[string]bool)
	for _, key := range k.Top(math.MaxInt) {
		listed[key.Key] = true
		if exact := n[key.Key]; exact < key.Rate-rounding || exact > key.Rate+key.Error+rounding {
			t.Fatalf("%q: %.3f uses a second, want between %.3f and %.3f more", key.Key, exact, key.Rate, key.Error)
		}
	}
	for key, exact := range n {
		if listed[key] {
			continue
		}
		s, b, _, _ := k.table.lock(key)
		s.mu.Unlock()
		least := math.Inf(1)
		for _, c := range b.counts {
			least = min(least, c)
		}
		if exact > least+rounding && exact >= 1.0/32 { // less is forgotten
			t.Fatalf("%q: %.3f uses a second and not in the table, whose least used key there has %.3f", key, exact, least)
		}
	}
}

// recall is the part of the truly most used n keys that is among the first n of the list.
func (n naive) recall(k *Keys, top int) float64 {
	found := 0
	for _, key := range k.Top(top) {
		higher := 0
		for _, exact := range n {
			if exact > n[key.Key] {
				higher++
			}
		}
		if higher < top {
			found++
		}
	}
	return float64(found) / float64(top)
}

// mails returns the recorded requests.
func mails(t *testing.T) (keys []string) {
	t.Helper()
	f, err := os.Open("testdata/domains_mail.txt.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(z); lines.Scan(); {
		keys = append(keys, lines.Text())
	}
	if len(keys) != 25_000 {
		t.Fatalf("got %d keys, want 25000", len(keys))
	}
	return keys
}

// source draws keys.
type source func(*rand.Rand) string

// million is ten nodes' worth of gets: a fifth of them for one key, a twentieth for keys that are read once, the rest without any
// outstanding key.
func million(r *rand.Rand) string {
	switch p := r.Float64(); {
	case p < 0.20:
		return "hot"
	case p < 0.25:
		return fmt.Sprint("cold:", r.Uint64())
	}
	// Zipf-Mandelbrot with exponent 0.9 and offset 100 over ten million ranks, by the inverse of its integral.
	const q, n, e = 100.0, 1e7, 0.1
	low, high := math.Pow(q+1, e), math.Pow(q+n, e)
	return fmt.Sprint("page:", int(math.Pow(low+r.Float64()*(high-low), 1/e)-q))
}

// flatCatalogue reads ten million products; the most read one gets 0.009 % of the reads.
func flatCatalogue(r *rand.Rand) string {
	const q, n = 11235.455, 1e7
	v := r.Float64() * n / (n + q)
	return fmt.Sprint("product:", int(q*v/(1-v)))
}

// steepCatalogue reads as many, but the most read one gets 5.74 %.
func steepCatalogue() source {
	const s, a, head, n = 0.954765, 0.954243, 1e5, 1e7
	sums, total := make([]float64, head), 0.0
	for i := range sums {
		total += math.Pow(float64(i+1), -s)
		sums[i] = total
	}
	return func(r *rand.Rand) string {
		if r.Float64() >= 0.9 {
			low, high := math.Pow(head, -a), math.Pow(n, -a)
			return fmt.Sprint("product:", int(math.Pow(low-r.Float64()*(low-high), -1/a)))
		}
		x, lo, hi := r.Float64()*total, 0, len(sums)-1
		for lo < hi {
			if mid := (lo + hi) / 2; sums[mid] < x {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		return fmt.Sprint("product:", lo)
	}
}
