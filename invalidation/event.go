package invalidation

// Event says that a key, or with All its whole keyspace, changed at the origin; with All and Tags only what has one of the tags.
//
// Ownership: the log keeps the strings and the slice. They must never change and must not alias a receive buffer.
type Event struct {
	Seq      uint64 // set by Log.Append; the first event of an incarnation is 1
	Keyspace string
	Key      string
	All      bool
	Epoch    uint64
	Tags     []string
}

// Token is the right to fill one key, as package shard gives it.
type Token struct {
	Incarnation uint64
	Number      uint64
}

// Revoke tells the holder of a lease that its fill will be refused and that its flight must not be joined any more (R1b).
type Revoke struct {
	Keyspace string
	Key      string
	Token    Token
}

// Batch is what one message of the stream carries. Its parts apply in this order: Reset, Events, Revokes, Renewed.
type Batch struct {
	Reset   bool   // the subscriber fell behind and must forget everything it holds; Events is empty then
	Seq     uint64 // the number of the last event sent: with Events their last one, with Reset where to continue after
	Events  []Event
	Revokes []Revoke
	Renewed bool
	Nonce   uint64 // of the renewal this answers
}

// Empty reports that there is nothing in it.
func (b *Batch) Empty() bool {
	return !b.Reset && !b.Renewed && len(b.Events) == 0 && len(b.Revokes) == 0
}

// clear makes b empty and keeps its slices' memory.
func (b *Batch) clear() {
	clear(b.Events)
	clear(b.Revokes)
	*b = Batch{Events: b.Events[:0], Revokes: b.Revokes[:0]}
}

// eventBytes is what an event counts in the log's budget: its strings and a flat rate for the rest.
func eventBytes(e *Event) int64 {
	n := overheadBytes + len(e.Keyspace) + len(e.Key)
	for _, t := range e.Tags {
		n += len(t)
	}
	return int64(n)
}

func revokeBytes(r *Revoke) int64 { return int64(overheadBytes + len(r.Keyspace) + len(r.Key)) }

const overheadBytes = 96
