package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcache/nearcache"
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
		d := newDatabase(100, 100*time.Millisecond)
		if d.capacity() != 100 {
			t.Errorf("capacity %v, want 100", d.capacity())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gaveUp := make(chan error, 200)
		for range 200 {
			go func() { gaveUp <- d.query(ctx) }()
		}
		synctest.Wait()
		began := time.Now()
		if err := d.query(t.Context()); err != nil || time.Since(began) != 2100*time.Millisecond {
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
		m := newMeter(s, newDatabase(100, 10*time.Millisecond))
		for at := time.Duration(0); at < s.lasts; at += slot / 10 {
			began := time.Now()
			switch {
			case at < s.from || at >= 3*time.Second:
				m.note(false, nil, began)
			case at%slot < slot/2:
				m.note(true, nil, began)
			case at%slot < slot*9/10:
				m.note(false, &nearcache.OverloadError{}, began)
			default:
				m.note(false, errors.New("failed"), began)
			}
			time.Sleep(slot / 10)
		}
		if got, want := m.broken(), [kinds]int{stale: 50, shed: 40, failed: 10}; got != want {
			t.Errorf("got %v, want %v", got, want)
		}
		if got := m.recovery(); got != time.Second {
			t.Errorf("recovered after %v, want a second", got)
		}
		counter := make([]int64, 50)
		for i := range counter {
			counter[i] = int64(20 * i)
		}
		if mean, most := m.perSecond(counter); mean != 200 || most != 200 {
			t.Errorf("%v a second, %v at most, want 200", mean, most)
		}
	})
}
