package transport

import (
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
)

const (
	// replyBytes is the size of values from which a frame of answers is sent: it is what gRPC lets a stream have unwritten.
	replyBytes = 64 << 10
	// maxPending is how many answers a member may be owed; one that keeps its own limits does not get there.
	maxPending = defaultLanes * (maxBatched + maxWaiting)
	// maxLateBytes is how much of late answers is kept for a member that does not read them. What is above it becomes parcels. Lower: those who
	// read, but slower than loads end, have to come for their answers; higher: more memory for those who never read.
	maxLateBytes = 4 << 20
)

// Session is a stream, or one bulk request, of a member that asks this one. Safe for concurrent use.
type Session struct {
	Member      string // its ID
	Addr        string // its advertised address
	Incarnation uint64
	Bulk        bool // one request that travels alone, not a lane

	t        *Transport
	view     atomic.Uint64
	heard    atomic.Int64 // when it last sent something, by Transport.now
	claim    *claim       // set by claims.enter
	replaced atomic.Bool  // another process has its member's ID now
	pending  atomic.Int64 // answers that the handler owes; for a moment one too few, when an answer overtakes Serve's return
	single   chan Reply   // capacity 1; of a bulk request, else nil

	// Of a lane.
	st   grpc.ServerStream
	turn chan struct{} // capacity 1: full while somebody sends. Why not a mutex: SendMsg blocks as long as the peer does not read

	// mu guards the fields below. It is a leaf.
	mu      sync.Mutex
	gone    bool
	late    []lateReply
	bytes   int64          // of the values of late
	sending bool           // sendLate runs
	news    bool           // a frame has to be sent even if it is empty: this member drains
	wg      sync.WaitGroup // Add under mu while not gone
}

type lateReply struct {
	id  uint32
	rep Reply
}

// View returns the fingerprint of the member's ring, as its last frame told.
func (s *Session) View() uint64 { return s.view.Load() }

// Answer gives the answer that Handler.Serve kept back. It never blocks and copies rep; rep.Value is not written afterwards. After Handler.Gone it
// does nothing.
func (s *Session) Answer(id uint32, rep *Reply) {
	if s.single != nil {
		select {
		case s.single <- *rep:
		default: // a second answer
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	l := lateReply{id, *rep}
	s.t.fit(s, &l.rep)
	n := int64(len(l.rep.Value))
	if s.claim.late.Add(n) > maxLateBytes {
		s.claim.late.Add(-n)
		s.t.park(s, &l.rep)
		n = 0
	}
	s.bytes += n
	s.late = append(s.late, l)
	s.startLocked()
}

// forgetLocked notes that answers with so many bytes of values are not late any more.
func (s *Session) forgetLocked(bytes int64) {
	s.bytes -= bytes
	s.claim.late.Add(-bytes)
}

// announce sends a frame that tells that this member drains.
func (s *Session) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.st == nil {
		return
	}
	s.news = true
	s.startLocked()
}

func (s *Session) startLocked() {
	if !s.sending {
		s.sending = true
		s.wg.Add(1)
		go s.sendLate()
	}
}

// owed returns how many answers are missing or not sent.
func (s *Session) owed() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := max(s.pending.Load(), 0) + int64(len(s.late))
	if s.sending {
		n++
	}
	return n
}

// serve answers the requests of a lane until the stream ends.
func (s *Session) serve(in *requestFrame) error {
	out := &replyFrame{}
	s.begin(out)
	out.Hello = s.t.hello()
	if err := s.send(out); err != nil {
		return err
	}
	for {
		if len(in.Reqs) > 0 {
			if err := s.serveFrame(in, out); err != nil {
				return err
			}
		}
		in.release()
		if err := s.st.RecvMsg(in); err != nil {
			return err
		}
		if err := s.listen(); err != nil {
			return err
		}
	}
}

// listen notes that the member has sent something, and refuses it if it may not any more.
func (s *Session) listen() error {
	s.heard.Store(s.t.now())
	if s.replaced.Load() {
		return errReplaced()
	}
	return nil
}

// serveFrame answers one frame. What Serve keeps back is answered with StatusWaiting for now.
func (s *Session) serveFrame(in *requestFrame, out *replyFrame) error {
	s.view.Store(in.View)
	s.begin(out)
	bytes := 0
	for i, req := range in.Reqs {
		if bytes >= replyBytes {
			if err := s.send(out); err != nil {
				return err
			}
			s.begin(out)
			bytes = 0
		}
		id := in.IDs[i]
		out.IDs = append(out.IDs, id)
		out.Reps = append(out.Reps, Reply{})
		rep := &out.Reps[len(out.Reps)-1]
		s.answer(id, req, rep)
		bytes += len(rep.Value)
	}
	out.Acked = 1
	return s.send(out)
}

// answer fills in what is answered to req at once.
func (s *Session) answer(id uint32, req *Request, rep *Reply) {
	if req.Op == OpPing {
		rep.Status = StatusOK
		return
	}
	if s.claim.pending.Load() >= maxPending {
		rep.Status = StatusBusy
		return
	}
	if !s.t.cfg.Handler.Serve(s, id, req, rep) {
		s.owe(1)
		*rep = Reply{Status: StatusWaiting}
		return
	}
	s.t.fit(s, rep)
}

// owe changes the number of answers that the handler owes.
func (s *Session) owe(n int64) {
	s.pending.Add(n)
	s.claim.pending.Add(n)
}

// sendLate sends the answers that were kept back, until there are no more.
func (s *Session) sendLate() {
	defer s.wg.Done()
	out := &replyFrame{}
	for {
		runtime.Gosched() // let others answer, for larger frames
		if !s.takeLate(out) {
			return
		}
		if err := s.send(out); err != nil {
			s.mu.Lock()
			s.sending = false
			s.late = nil // the receiving goroutine sees the same end
			s.forgetLocked(s.bytes)
			s.mu.Unlock()
			return
		}
	}
}

// takeLate moves answers into the frame. If there are none the sender has ended.
func (s *Session) takeLate(out *replyFrame) bool {
	s.begin(out)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.late) == 0 && !s.news {
		s.sending = false
		return false
	}
	s.news = false
	n, bytes := 0, 0
	for n < len(s.late) && n < MaxBatchOps && bytes < replyBytes {
		l := &s.late[n]
		out.add(l.id, &l.rep)
		bytes += len(l.rep.Value)
		n++
	}
	s.owe(-int64(n))
	s.forgetLocked(int64(bytes))
	m := copy(s.late, s.late[n:])
	clear(s.late[m:])
	s.late = s.late[:m]
	return true
}

// begin empties a frame and sets what every frame tells.
func (s *Session) begin(out *replyFrame) {
	out.reset()
	out.View = s.t.cfg.View()
	out.InView = s.t.cfg.InView(s.Member, s.Addr)
}

// send sends a frame. It blocks as long as the peer does not read, and so bounds what is kept for it.
func (s *Session) send(out *replyFrame) error {
	s.turn <- struct{}{}
	out.Draining = s.t.draining.Load()
	err := s.st.SendMsg(out)
	<-s.turn
	return err
}

// end waits for the sender of late answers. No answer is taken any more.
func (s *Session) end() {
	s.mu.Lock()
	s.gone = true
	s.late = nil
	s.forgetLocked(s.bytes)
	s.mu.Unlock()
	s.wg.Wait()
	s.owe(-s.pending.Load())
}
