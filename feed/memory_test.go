package feed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/feed/feedtest"
)

func TestMemory(t *testing.T) {
	feedtest.Run(t, func(*testing.T) feedtest.Stream {
		m := feed.NewMemory(0)
		return feedtest.Stream{Source: m, Append: m.Append, Clean: func() { m.Clean(0) }, Recreate: m.Recreate, Restart: func() {}, Within: time.Second}
	})
}

// A stream that is broken says so, and one that keeps little loses history, not what is read in time.
func TestMemoryBreaksAndForgets(t *testing.T) {
	m := feed.NewMemory(2)
	tail, err := m.Tail(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("connection lost")
	m.Break(broken)
	if _, err := m.Tail(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Tail: got %v, want %v", err, broken)
	}
	if err := m.Read(t.Context(), tail, func(feed.Batch) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("Read: got %v, want %v", err, broken)
	}
	m.Break(nil)
	change := func(key string) feed.Change { return feed.Change{Keyspace: "k", Key: key} }
	m.Append(change("a"), change("b"))
	for _, want := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		err := m.Read(ctx, tail, func(b feed.Batch) error {
			if got := b.Gap != ""; got != want || len(b.Changes) != 2 {
				t.Errorf("got %+v, want two changes and gap %v", b, want)
			}
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Read: got %v, want the context's error", err)
		}
		m.Append(change("c"))
	}
}
