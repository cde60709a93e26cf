package transport

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The coherence stream delivers in order, tells when a renewal was sent, and begins anew with each incarnation.
func TestCohere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var mu sync.Mutex
		var seqs []uint64
		renewed := 0
		asker := &node{received: func(p *Peer, inc uint64, d *Down, sent time.Time) {
			mu.Lock()
			defer mu.Unlock()
			for _, inv := range d.Invs {
				seqs = append(seqs, inv.Seq)
			}
			if d.Renewed {
				renewed++
				if age := time.Since(sent); age < 0 || age > 100*time.Millisecond {
					t.Errorf("renewal %d was sent %v ago", d.Nonce, age)
				}
			}
			if d.View != 42 || !d.InView {
				t.Errorf("got view %d, in view %v", d.View, d.InView)
			}
		}}
		f, f2 := &feed{c: make(chan *Down, 16)}, &feed{c: make(chan *Down, 16)}
		feeds := make(chan *feed, 2)
		feeds <- f
		feeds <- f2
		var subscriber Session
		server := &node{subscribe: func(s *Session) Subscription {
			subscriber.Member, subscriber.Incarnation = s.Member, s.Incarnation
			return <-feeds
		}}
		a, b := start(m, "a", asker), start(m, "b", server)
		connect(t, a)
		for i := range 100 {
			f.c <- &Down{Invs: []Inv{{Seq: uint64(2 * i), Keyspace: "ks", Key: "k"}, {Seq: uint64(2*i + 1), Keyspace: "ks", All: true}}}
		}
		time.Sleep(10*time.Second + 10*time.Millisecond)
		mu.Lock()
		if len(seqs) != 200 {
			t.Errorf("got %d invalidations, want 200", len(seqs))
		}
		for i, s := range seqs {
			if s != uint64(i) {
				t.Fatalf("invalidation %d has number %d", i, s)
			}
		}
		if renewed < 40 || renewed > 42 {
			t.Errorf("got %d renewals in 10 s, want one every %v", renewed, defaultRenewEvery)
		}
		mu.Unlock()
		if subscriber.Member != "a" || subscriber.Incarnation != 1 {
			t.Errorf("subscriber: got %+v", &subscriber)
		}

		// The owner ends the subscription: the stream comes back.
		close(f.c)
		time.Sleep(3 * time.Second)
		shut(t, b)
		cfg := testConfig(m, "b", &node{})
		cfg.Self.Incarnation = 5
		b = New(cfg)
		b.Serve(m.listen("b"))
		time.Sleep(3 * time.Second)
		shut(t, a, b)
		want := "[connected b 1 disconnected b connected b 1 disconnected b connected b 5 disconnected b]"
		if got := fmt.Sprint(asker.events); got != want {
			t.Errorf("events: got %s, want %s", got, want)
		}
		if !f.closed || !f2.closed {
			t.Error("subscriptions were not closed")
		}
	})
}

func TestRenewals(t *testing.T) {
	r := &renewals{}
	if got := r.answered(0); !got.IsZero() {
		t.Error("nonce 0 has a time")
	}
	for range 2 * maxRenewals {
		r.next()
	}
	for nonce, known := range map[uint64]bool{1: false, maxRenewals: false, maxRenewals + 1: true, 2 * maxRenewals: true, 2*maxRenewals + 1: false, 0: false} {
		if got := !r.answered(nonce).IsZero(); got != known {
			t.Errorf("nonce %d: got known %v, want %v", nonce, got, known)
		}
	}
}

// A subscriber that does not read costs its own stream's buffers and nothing else.
func TestCohereSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := &feed{c: make(chan *Down)}
		server := &node{subscribe: func(*Session) Subscription { return f }}
		a, b := start(m, "a", &node{}), start(m, "b", server)
		p := connect(t, a)
		m.gate("b").shut()
		big := &Down{Invs: make([]Inv, MaxBatchKeys)}
		for i := range big.Invs {
			big.Invs[i] = Inv{Seq: 1, Keyspace: "ks", Key: fmt.Sprintf("%0500d", i)}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		taken := 0
		for ctx.Err() == nil {
			select {
			case f.c <- big:
				taken++
			case <-ctx.Done():
			}
		}
		if taken > 10 {
			t.Errorf("%d messages of 500 KB were taken for a subscriber that does not read", taken)
		}
		m.gate("b").lift()
		await(t, "peer is ready", p.Ready)
		shut(t, a, b)
	})
}
