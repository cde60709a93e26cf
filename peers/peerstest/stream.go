package peerstest

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// stream is one direction of a connection: a bounded queue of bytes, each with the time at which it arrives. Only the head
// of the queue can be read, so nothing overtakes. Bytes on a link that is cut do not arrive; they stay queued and, once the queue is full, block the writer.
type stream struct {
	link, back *link // the direction of the bytes, and the one of what the writer hears of the reader

	mu      sync.Mutex // guards everything below
	changed sync.Cond  // broadcast after every change that a reader or a writer may wait for

	queue []chunk
	size  int // bytes queued

	writeErr error     // what Write returns once the writer has closed its side; nil: open
	end      error     // what the reader gets behind the last chunk; nil: open
	endAt    time.Time // when it arrives
	readErr  error     // what Read returns once the reader has closed its side; nil: open
	heardAt  time.Time // when the writer hears of that

	readBy, writeBy deadline
}

type chunk struct {
	bytes []byte
	at    time.Time
}

func newStream(l, back *link) *stream {
	s := &stream{link: l, back: back}
	s.changed.L = &s.mu
	return s
}

func (s *stream) wake() {
	s.mu.Lock()
	s.changed.Broadcast()
	s.mu.Unlock()
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readErr != nil:
			return 0, s.readErr
		case s.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		if !s.link.cut.Load() {
			if len(s.queue) > 0 && !s.queue[0].at.After(time.Now()) {
				n := s.takeLocked(p)
				s.changed.Broadcast()
				return n, nil
			}
			if len(s.queue) == 0 && s.end != nil && !s.endAt.After(time.Now()) {
				return 0, s.end
			}
		}
		s.changed.Wait()
	}
}

// takeLocked moves what has arrived and fits to p.
func (s *stream) takeLocked(p []byte) int {
	now, n := time.Now(), 0
	for n < len(p) && len(s.queue) > 0 && !s.queue[0].at.After(now) {
		head := &s.queue[0]
		k := copy(p[n:], head.bytes)
		n += k
		head.bytes = head.bytes[k:]
		if len(head.bytes) == 0 {
			s.queue[0] = chunk{}
			s.queue = s.queue[1:]
		}
	}
	s.size -= n
	return n
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for {
		switch {
		case s.writeErr != nil:
			return n, s.writeErr
		case s.writeBy.passed():
			return n, os.ErrDeadlineExceeded
		case s.readErr != nil && !s.back.cut.Load() && !s.heardAt.After(time.Now()):
			return n, syscall.EPIPE
		case n == len(p):
			return n, nil
		}
		if free := bufferedBytes - s.size; free > 0 {
			k := min(free, len(p)-n)
			s.queue = append(s.queue, chunk{bytes: append([]byte(nil), p[n:n+k]...), at: s.arrivalLocked()})
			s.size += k
			n += k
			s.changed.Broadcast()
			continue
		}
		s.changed.Wait()
	}
}

// arrivalLocked returns when something sent now arrives, behind all that is queued, and wakes the reader then.
func (s *stream) arrivalLocked() time.Time {
	now := time.Now() // before the timer starts: the reader must not be woken too early, as nobody wakes it again
	at := now.Add(s.link.delay())
	if n := len(s.queue); n > 0 && at.Before(s.queue[n-1].at) {
		at = s.queue[n-1].at // the delay was longer then
	}
	if d := at.Sub(now); d > 0 {
		time.AfterFunc(d, s.wake)
	}
	return at
}

// closeRead ends the reading side: Read returns err, what is queued is dropped, and the writer hears of it at heardAt. False when it
// had ended before.
func (s *stream) closeRead(err error, heardAt time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readErr != nil {
		return false
	}
	s.readErr, s.heardAt = err, heardAt
	if d := time.Until(heardAt); d > 0 {
		time.AfterFunc(d, s.wake)
	}
	s.queue, s.size = nil, 0
	s.readBy.stop()
	s.changed.Broadcast()
	return true
}

// closeWrite ends the writing side: Write returns err, and the reader gets end after what is queued. It returns when.
func (s *stream) closeWrite(err, end error) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeErr != nil {
		return s.endAt
	}
	s.writeErr, s.end = err, end
	s.endAt = s.arrivalLocked()
	s.writeBy.stop()
	s.changed.Broadcast()
	return s.endAt
}

func (s *stream) setReadDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBy.set(t, s.wake)
	s.changed.Broadcast()
}

func (s *stream) setWriteDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeBy.set(t, s.wake)
	s.changed.Broadcast()
}

// deadline is a point in time that wakes whoever waits when it passes. The zero value never passes.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) set(t time.Time, wake func()) {
	d.stop()
	d.at = t
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	d.at = time.Now().Add(wait) // with a monotonic reading, so that it has passed when the timer fires
	if wait > 0 {
		d.timer = time.AfterFunc(wait, wake)
	}
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }
