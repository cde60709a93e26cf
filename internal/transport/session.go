package transport

// Session is a stream, or one bulk request, of a member that asks this one. Safe for concurrent use.
type Session struct {
	Member      string // its ID
	Addr        string // its advertised address
	Incarnation uint64
}

// Answer gives the answer that Handler.Serve kept back. It never blocks and copies rep; rep.Value is not written afterwards. After Handler.Gone it
// does nothing.
func (s *Session) Answer(id uint32, rep *Reply) {}
