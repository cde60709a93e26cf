package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/nearcache/nearcache/example/internal/trace"
)

// numbers returns a trace of the keys 0 to n-1.
func numbers(t *testing.T, n int) *trace.Trace {
	t.Helper()
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintln(&text, i)
	}
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Read(bytes.NewReader(w.EncodeAll(text.Bytes(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestReadersShareTheTrace: together the nodes make every request once, at the configured rate; those of a lost node go to the others.
func TestReadersShareTheTrace(t *testing.T) {
	tr := numbers(t, 10_000)
	synctest.Test(t, func(t *testing.T) {
		const nodes, rate = 3, 1000
		var mu sync.Mutex
		asked := make(map[string]int)
		var byNode [nodes]int
		var cancels [nodes]context.CancelFunc
		zero := time.Now()
		var readers [nodes]*reader
		var running sync.WaitGroup
		for i := range readers {
			readers[i] = newReader(settings{Node: i, Nodes: nodes, Rate: rate, Seed: 5}, tr, newClock(zero),
				func(_ context.Context, id string) (product, tier, error) {
					mu.Lock()
					defer mu.Unlock()
					asked[id]++
					byNode[i]++
					return productAt(id, 1), tierNear, nil
				})
			ctx, cancel := context.WithCancel(t.Context())
			cancels[i] = cancel
			running.Go(func() { readers[i].run(ctx) })
		}
		time.Sleep(2*time.Second + time.Microsecond)
		synctest.Wait()
		mu.Lock()
		before := byNode
		if len(asked) != 2*rate || before[0]+before[1]+before[2] != 2*rate {
			t.Errorf("got %v reads of %d keys in 2 s, want %d, each key once", before, len(asked), 2*rate)
		}
		mu.Unlock()
		cancels[1]() // killed
		readers[0].lose(1)
		readers[2].lose(1)
		time.Sleep(2 * time.Second)
		cancels[0]()
		cancels[2]()
		running.Wait()
		if byNode[1] != before[1] || len(asked) != 4*rate {
			t.Errorf("after the loss: got %v reads of %d keys, want none more of node 1, %d keys", byNode, len(asked), 4*rate)
		}
		for id, n := range asked {
			if n != 1 {
				t.Fatalf("key %s was asked for %d times, want 1", id, n)
			}
		}
	})
}

func TestReaderReports(t *testing.T) {
	tr := numbers(t, 3)
	synctest.Test(t, func(t *testing.T) {
		r := newReader(settings{Nodes: 1, Rate: 1000, Seed: 1}, tr, newClock(time.Now().Add(-time.Second)),
			func(_ context.Context, id string) (product, tier, error) {
				time.Sleep(7 * msec)
				switch id {
				case "0":
					return productAt("0", 4), tierPeer, nil
				case "1":
					return productAt("0", 4), tierOwn, nil // another product's
				default:
					return product{}, tierFailed, errors.New("boom")
				}
			})
		for i := range 3 {
			r.read(i)
		}
		got := r.take()
		want := []readRecord{
			record(0, time.Second, 7*msec, tierPeer, 4),
			record(1, time.Second+7*msec, 7*msec, tierOwn, 4),
			record(2, time.Second+14*msec, 7*msec, tierFailed, 0),
		}
		if fmt.Sprint(got.Reads) != fmt.Sprint(want) || got.Failures["boom"] != 1 || total(got.Failures) != 1 || total(got.Wrong) != 1 {
			t.Errorf("got %v, want reads %v, one boom, one wrong answer", got, want)
		}
		if again := r.take(); len(again.Reads)+len(again.Failures)+len(again.Wrong) != 0 {
			t.Errorf("got %v at the second take, want nothing", again)
		}
	})
}

// TestReaderNoticesStalls: a process that oversleeps says so.
func TestReaderNoticesStalls(t *testing.T) {
	tr := numbers(t, 3)
	synctest.Test(t, func(t *testing.T) {
		zero := time.Now()
		r := newReader(settings{Nodes: 1, Rate: 1, Seed: 1}, tr, newClock(zero), nil)
		r.stalled(time.Second, time.Second+stallAfter)
		if got := r.take().Stalls; len(got) != 1 || got[0] != (stallRecord{time.Second, time.Second + stallAfter}) {
			t.Errorf("got %v, want one stall", got)
		}
	})
}
