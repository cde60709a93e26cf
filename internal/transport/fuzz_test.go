package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// tape is the server's end of a stream whose client says what is on the tape, and keeps count of what it is answered.
type tape struct {
	t     *testing.T
	codec codec
	rest  []byte // messages, each after its length in two bytes
	asked map[uint32]int

	mu      sync.Mutex
	final   map[uint32]int
	waiting map[uint32]int
	acked   int
	frames  int
}

func (s *tape) SetHeader(metadata.MD) error  { return nil }
func (s *tape) SendHeader(metadata.MD) error { return nil }
func (s *tape) SetTrailer(metadata.MD)       {}
func (s *tape) Context() context.Context     { return context.Background() }

func (s *tape) RecvMsg(m any) error {
	if len(s.rest) < 2 {
		return io.EOF
	}
	n := min(int(binary.BigEndian.Uint16(s.rest)), len(s.rest)-2)
	message := bytes.Clone(s.rest[2 : 2+n])
	s.rest = s.rest[2+n:]
	if err := s.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, m); err != nil {
		return err
	}
	f := m.(*requestFrame)
	if len(f.IDs) != len(f.Reqs) || len(f.IDs) > MaxBatchOps {
		s.t.Errorf("a frame has %d ids and %d requests", len(f.IDs), len(f.Reqs))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range f.IDs {
		s.asked[id]++
	}
	if len(f.IDs) > 0 {
		s.frames++
	}
	return nil
}

func (s *tape) SendMsg(m any) error {
	data, err := s.codec.Marshal(m)
	if err != nil {
		s.t.Errorf("an answer cannot be encoded: %v", err)
		return err
	}
	defer data.Free()
	if data.Len() > maxMessageBytes {
		s.t.Errorf("a frame of %d bytes", data.Len())
	}
	var f replyFrame
	if err := s.codec.Unmarshal(data, &f); err != nil {
		s.t.Errorf("an answer cannot be decoded: %v", err)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked += int(f.Acked)
	if s.acked > s.frames {
		s.t.Errorf("%d of %d frames are acknowledged", s.acked, s.frames)
	}
	for i, id := range f.IDs {
		kind := s.final
		if f.Reps[i].Status == StatusWaiting {
			kind = s.waiting
		}
		if kind[id]++; kind[id] > s.asked[id] {
			s.t.Errorf("id %d was asked %d times, and answered %d times", id, s.asked[id], kind[id])
		}
		if len(f.Reps[i].Value) > InlineValueBytes {
			s.t.Errorf("a value of %d bytes on a lane", len(f.Reps[i].Value))
		}
	}
	return nil
}

// record puts messages on a tape.
func record(messages ...[]byte) []byte {
	var b []byte
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
		b = append(b, m...)
	}
	return b
}

// FuzzLane serves arbitrary frames: nothing panics, no id is answered more often than it was asked, and the limits hold.
func FuzzLane(f *testing.F) {
	large := make([]byte, InlineValueBytes+1)
	var wg sync.WaitGroup
	h := &node{serve: func(s *Session, id uint32, req *Request, rep *Reply) bool {
		// What it answers depends on the key, and it is answered once.
		r := Reply{Status: StatusHit, Value: []byte(strings.Clone(req.Key)), HasValue: true, TTL: req.TTL, Version: req.Version}
		switch {
		case len(req.Key)%3 == 1:
			wg.Go(func() { s.Answer(id, &r) })
			return false
		case len(req.Key)%3 == 2:
			s.Answer(id, &r)
			return false
		case len(req.Keys) > 0:
			r.Value = large
		}
		*rep = r
		return true
	}}
	tr := New(testConfig(newMemory(), "b", h))
	f.Cleanup(func() { _ = tr.Close(context.Background()) })
	hello := encoded(f, tr, &requestFrame{Hello: &hello{Protocol: ProtocolVersion, Cluster: "test", Member: "a", Addr: "a", Incarnation: 1}})
	frame := func(reqs ...*Request) []byte {
		fr := &requestFrame{View: 7}
		for i, q := range reqs {
			fr.add(uint32(i%3), q)
		}
		return encoded(f, tr, fr)
	}
	all := frame(get("now"), get("late"), get("early"), &Request{Op: OpPing}, &Request{Op: OpInvalidate, Keyspace: "ks", Keys: []string{"a", "b"}},
		&Request{Op: OpSet, Keyspace: "ks", Key: "key", Value: []byte("v"), HasValue: true, TTL: 1 << 40, Tags: []string{"t"}}, &Request{Op: 200})
	f.Add(record(hello, all, all, frame()))
	f.Add(record(all))
	f.Add(record(hello, hello, all))
	f.Add(record(hello, all[:len(all)/2]))
	f.Add(record(hello, []byte("\x1a\x00\x1a\x00"), nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &tape{t: t, codec: tr.codec, rest: data, asked: map[uint32]int{}, final: map[uint32]int{}, waiting: map[uint32]int{}}
		_ = serveLane(tr, s) // any error will do
		wg.Wait()
		if n := len(tr.claims.held); n != 0 {
			t.Errorf("%d claims are left", n)
		}
		if n := tr.pending(); n != 0 {
			t.Errorf("%d answers are owed", n)
		}
	})
}

// What a member is owed is counted for its lanes together, and nothing of a lane that ended counts any more.
func TestOwedToAMember(t *testing.T) {
	var other *Session
	held, reached := 0, int64(0)
	h := &node{serve: func(s *Session, id uint32, req *Request, _ *Reply) bool {
		if req.Key == "late" {
			s.Answer(id, &Reply{Status: StatusHit, Value: make([]byte, InlineValueBytes), HasValue: true})
		}
		held++
		reached = max(reached, s.claim.late.Load())
		return false
	}}
	tr := New(testConfig(newMemory(), "b", h))
	self := &hello{Protocol: ProtocolVersion, Cluster: "test", Member: "a", Addr: "a", Incarnation: 1}
	other, err := tr.newSession(t.Context(), self, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	tape := &tape{t: t, codec: tr.codec, asked: map[uint32]int{}, final: map[uint32]int{}, waiting: map[uint32]int{}}
	tape.rest = record(encoded(t, tr, &requestFrame{Hello: self}))
	for frame := range 100 {
		f := &requestFrame{}
		for i := range MaxBatchOps {
			key := "never"
			if (frame+i)%2 == 0 {
				key = "late"
			}
			f.add(uint32(frame*MaxBatchOps+i), get(key))
		}
		tape.rest = append(tape.rest, record(encoded(t, tr, f))...)
	}
	const others = maxPending - 5000 // are owed to the member's other lane
	other.claim.pending.Store(others)
	_ = serveLane(tr, tape)
	if held < 5000 || held >= 100*MaxBatchOps {
		t.Errorf("the handler was asked %d of %d times, want no more once %d answers are owed", held, 100*MaxBatchOps, maxPending)
	}
	if reached > maxLateBytes {
		t.Errorf("%d bytes of late answers were kept, want at most %d", reached, maxLateBytes)
	}
	if n, b := other.claim.pending.Load(), other.claim.late.Load(); n != others || b != 0 {
		t.Errorf("%d answers and %d bytes are still counted for a lane that has ended", n-others, b)
	}
	tr.claims.leave(other)
	shut(t, tr)
}
