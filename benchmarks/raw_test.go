package benchmarks

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
)

// The raw system is what a connection can carry with nothing around it: length-prefixed requests and replies with numbers, pipelined over one TCP
// connection, one write per batch. No deadline, no cancellation, no failure but that of everything.
//
//	request: number u32, length u32, key
//	reply:   number u32, length u32, value
const rawHeader = 8

func ownRaw(ctx context.Context, held map[string][]byte) (string, error) {
	l, err := listen(ctx)
	if err != nil {
		return "", err
	}
	go func() { // until the process ends
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveRaw(conn, held)
		}
	}()
	return l.Addr().String(), nil
}

func serveRaw(conn net.Conn, held map[string][]byte) {
	defer conn.Close()
	r, w := bufio.NewReaderSize(conn, 64<<10), bufio.NewWriterSize(conn, 64<<10)
	var head [rawHeader]byte
	var key []byte
	for {
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		key = append(key[:0], make([]byte, binary.LittleEndian.Uint32(head[4:]))...)
		if _, err := io.ReadFull(r, key); err != nil {
			return
		}
		v := held[string(key)]
		binary.LittleEndian.PutUint32(head[4:], uint32(len(v)))
		_, _ = w.Write(head[:]) // Flush returns its error
		_, _ = w.Write(v)
	}
}

// rawClient is one connection for all callers. The first one that finds nobody sending sends for all.
type rawClient struct {
	conn net.Conn

	mu      sync.Mutex // guards what follows
	queue   []byte     // requests that nobody sends yet
	spare   []byte
	sending bool
	waiters map[uint32]*rawWaiter
	last    uint32
}

// rawWaiter is a call for one or more values.
type rawWaiter struct {
	left, bytes int // of the receiver until done
	done        chan struct{}
}

func (c *rawClient) get(keys ...string) (int, error) {
	w := &rawWaiter{left: len(keys), done: make(chan struct{}, 1)}
	c.mu.Lock()
	for _, key := range keys {
		c.last++
		c.waiters[c.last] = w
		c.queue = binary.LittleEndian.AppendUint32(c.queue, c.last)
		c.queue = binary.LittleEndian.AppendUint32(c.queue, uint32(len(key)))
		c.queue = append(c.queue, key...)
	}
	leads := !c.sending
	c.sending = true
	c.mu.Unlock()
	if leads {
		if err := c.send(); err != nil {
			return 0, err
		}
	}
	<-w.done
	return w.bytes, nil
}

// send writes what is queued until nothing is.
func (c *rawClient) send() error {
	for {
		runtime.Gosched() // others may queue
		c.mu.Lock()
		batch := c.queue
		if len(batch) == 0 {
			c.sending = false
			c.mu.Unlock()
			return nil
		}
		c.queue = c.spare[:0]
		c.mu.Unlock()
		_, err := c.conn.Write(batch)
		c.mu.Lock()
		c.spare = batch
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// receive hands replies out until the connection ends.
func (c *rawClient) receive() {
	r := bufio.NewReaderSize(c.conn, 64<<10)
	var head [rawHeader]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		v := make([]byte, binary.LittleEndian.Uint32(head[4:])) // the caller's
		if _, err := io.ReadFull(r, v); err != nil {
			return
		}
		number := binary.LittleEndian.Uint32(head[:])
		c.mu.Lock()
		w := c.waiters[number]
		delete(c.waiters, number)
		c.mu.Unlock()
		w.bytes += len(v)
		if w.left--; w.left == 0 {
			w.done <- struct{}{}
		}
	}
}

func rawRemote(b *testing.B, o *owner) remote {
	b.Helper()
	var d net.Dialer
	conn, err := d.DialContext(b.Context(), "tcp", o.Raw)
	if err != nil {
		b.Fatal(err)
	}
	c := &rawClient{conn: conn, waiters: make(map[uint32]*rawWaiter)}
	var wg sync.WaitGroup
	wg.Go(c.receive)
	b.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	return remote{
		name:    "raw",
		get:     func(_ context.Context, key string) (int, error) { return c.get(key) },
		getMany: func(_ context.Context, keys []string) (int, error) { return c.get(keys...) },
	}
}
