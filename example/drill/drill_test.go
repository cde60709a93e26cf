package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/feed"
)

// One break, both ways: a row for each, a picture, and with the protection hardly a query.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	plot := filepath.Join(t.TempDir(), "plot.svg")
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-break", "2", "-speed", "4", "-plot", plot}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"break 2:", "\noff ", "\non "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got no %q in:\n%s", want, &out)
		}
	}
	if b, err := os.ReadFile(plot); err != nil || !bytes.Contains(b, []byte("</svg>")) {
		t.Errorf("the picture: %v, %d bytes", err, len(b))
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-break", "9"}, {"-plot", "x.svg"}, {"-speed", "0"}, {"-nonsense"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// Beyond its capacity the database answers later and later; who gives up has caused the work all the same.
func TestDatabaseQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := perSecond(100, 100*time.Millisecond)
		if c.perSecond() != 100 {
			t.Errorf("capacity %v, want 100", c.perSecond())
		}
		d := newDatabase(newSimulated(c.slots), c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gaveUp := make(chan error, 200)
		for range 200 {
			go func() {
				_, err := d.query(ctx, "k")
				gaveUp <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		if _, err := d.query(t.Context(), "k"); err != nil || time.Since(began) != 2100*time.Millisecond {
			t.Errorf("got %v after %v, want an answer behind 200 others", err, time.Since(began))
		}
		failed := 0
		for range 200 {
			if err := <-gaveUp; err != nil {
				failed++
			}
		}
		if failed < 90 || failed > 110 || d.queries.Load() != 201 {
			t.Errorf("%d of 200 gave up, %d queries, want half and 201", failed, d.queries.Load())
		}
	})
}

func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scenario{from: time.Second, to: 2 * time.Second, lasts: 5 * time.Second, begin: func(*cluster) {}}
		m := newMeter(s, newDatabase(newSimulated(1), perSecond(100, 10*time.Millisecond)))
		for at := time.Duration(0); at < s.lasts; at += slot / 10 {
			began := time.Now()
			switch {
			case at < s.from || at >= 3*time.Second:
				m.note("k", answer{version: 1}, nil, began)
			case at%slot < slot/2:
				m.note("k", answer{stale: true}, nil, began)
			case at%slot < slot*9/10:
				m.note("k", answer{}, &nearcache.OverloadError{}, began)
			default:
				m.note("k", answer{}, errors.New("failed"), began)
			}
			time.Sleep(slot / 10)
		}
		if got, want := m.broken(), [kinds]int{stale: 50, shed: 40, failed: 10}; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
		if err := m.db.change(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		changed := time.Now()
		time.Sleep(2 * bound)
		for version, want := range map[int]int{1: old, 2: fresh} {
			before := m.seen[len(m.seen)-1][want]
			m.note("k", answer{version: version}, nil, changed.Add(bound+time.Millisecond))
			if got := m.seen[len(m.seen)-1][want]; got != before+1 {
				t.Errorf("version %d a Bound after version 2 is not counted as %d", version, want)
			}
		}
		m.note("k", answer{version: 1}, nil, changed.Add(bound/2))
		if got := m.seen[len(m.seen)-1][old]; got != 1 {
			t.Errorf("%d old reads, want what was read within a Bound not to be one", got)
		}
		if got := m.recovery(fresh); got != time.Second {
			t.Errorf("recovered after %v, want a second", got)
		}
		counter := make([]int64, 50)
		for i := range counter {
			counter[i] = int64(20 * i)
		}
		if mean, most := m.rates(counter); mean != 200 || most != 200 {
			t.Errorf("%v a second, %v at most, want 200", mean, most)
		}
	})
}

// A stream that was cut goes on where it was, or after what was lost.
func TestStream(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			changes := feed.NewMemory(0)
			s := &stream{Source: changes, forgets: forgets}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			after, err := s.Tail(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var heard []string
			read := func() {
				err := s.Read(ctx, after, func(b feed.Batch) error {
					for _, c := range b.Changes {
						heard = append(heard, c.Key)
					}
					after = b.Position
					return nil
				})
				if !errors.Is(err, errCut) && !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want that it was cut, or ended", err)
				}
			}
			write := func(key string) {
				changes.Append(feed.Change{Keyspace: keyspace, Key: key})
				synctest.Wait()
			}
			go read()
			synctest.Wait()
			write("before")
			s.broken.Store(true)
			write("meanwhile")
			if _, err := s.Tail(ctx); !errors.Is(err, errCut) {
				t.Errorf("Tail while it is cut: %v", err)
			}
			read()
			s.broken.Store(false)
			go read()
			synctest.Wait()
			write("after")
			want := []string{"before", "meanwhile", "after"}
			if forgets {
				want = []string{"before", "after"}
			}
			if !slices.Equal(heard, want) {
				t.Errorf("forgets: %v: heard %q, want %q", forgets, heard, want)
			}
		})
	}
}
