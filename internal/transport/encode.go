package transport

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
)

// Every message has a pair of functions here: one tells its size, which its length prefix and the buffer need beforehand, one
// writes it. Both follow peer.proto's order of fields; the tests compare both with the generated code.

// marshalRequests encodes a batch: one buffer, and one more for every large value.
func (c codec) marshalRequests(f *requestFrame) (mem.BufferSlice, error) {
	if len(f.IDs) != len(f.Reqs) || len(f.Reqs) > MaxBatchOps {
		return nil, errLimit
	}
	l, err := headLayout(f.Hello, f.View)
	if err != nil {
		return nil, err
	}
	f.sizes = f.sizes[:0]
	for i, q := range f.Reqs {
		if err := q.check(); err != nil {
			return nil, err
		}
		n := q.wireBytes() + sizeFixed32(reqID, f.IDs[i])
		f.sizes = append(f.sizes, n)
		l.item(frameItems, n, q.Value)
	}
	w, err := c.newWriter(l)
	if err != nil {
		return nil, err
	}
	w.head(f.Hello, f.View)
	for i, q := range f.Reqs {
		w.open(frameItems, f.sizes[i])
		w.request(f.IDs[i], q)
	}
	return w.finish()
}

// marshalReplies encodes a batch of answers: one buffer, and one more for every large value.
func (c codec) marshalReplies(f *replyFrame) (mem.BufferSlice, error) {
	if len(f.IDs) != len(f.Reps) || len(f.Reps) > MaxBatchOps {
		return nil, errLimit
	}
	l, err := headLayout(f.Hello, f.View)
	if err != nil {
		return nil, err
	}
	l.total += sizeUint(repFrameAcked, uint64(f.Acked)) + sizeBool(repFrameInView, f.InView) + sizeBool(repFrameDraining, f.Draining)
	f.sizes = f.sizes[:0]
	for i := range f.Reps {
		r := &f.Reps[i]
		if err := r.check(); err != nil {
			return nil, err
		}
		n := r.wireBytes() + sizeFixed32(repID, f.IDs[i])
		f.sizes = append(f.sizes, n)
		l.item(repFrameItems, n, r.Value)
	}
	w, err := c.newWriter(l)
	if err != nil {
		return nil, err
	}
	w.head(f.Hello, f.View)
	w.uint(repFrameAcked, uint64(f.Acked))
	w.bool(repFrameInView, f.InView)
	w.bool(repFrameDraining, f.Draining)
	for i := range f.Reps {
		w.open(repFrameItems, f.sizes[i])
		w.reply(f.IDs[i], &f.Reps[i])
	}
	return w.finish()
}

// marshalBulkRequest encodes a request that travels alone.
func (c codec) marshalBulkRequest(f *bulkRequest) (mem.BufferSlice, error) {
	l, err := headLayout(f.Hello, f.View)
	if err != nil {
		return nil, err
	}
	if err := f.Req.check(); err != nil {
		return nil, err
	}
	n := f.Req.wireBytes()
	l.item(frameItems, n, f.Req.Value)
	w, err := c.newWriter(l)
	if err != nil {
		return nil, err
	}
	w.head(f.Hello, f.View)
	w.open(frameItems, n)
	w.request(0, &f.Req)
	return w.finish()
}

// marshalBulkReply encodes the answer to a bulkRequest.
func (c codec) marshalBulkReply(f *bulkReply) (mem.BufferSlice, error) {
	l, err := headLayout(f.Hello, f.View)
	if err != nil {
		return nil, err
	}
	if err := f.Rep.check(); err != nil {
		return nil, err
	}
	n := f.Rep.wireBytes()
	l.item(frameItems, n, f.Rep.Value)
	w, err := c.newWriter(l)
	if err != nil {
		return nil, err
	}
	w.head(f.Hello, f.View)
	w.open(frameItems, n)
	w.reply(0, &f.Rep)
	return w.finish()
}

// marshalUp encodes a subscriber's message.
func (c codec) marshalUp(f *cohereUp) (mem.BufferSlice, error) {
	l, err := headLayout(f.Hello, f.View)
	if err != nil {
		return nil, err
	}
	l.total += sizeUint(upNonce, f.Nonce)
	w, err := c.newWriter(l)
	if err != nil {
		return nil, err
	}
	w.head(f.Hello, f.View)
	w.uint(upNonce, f.Nonce)
	return w.finish()
}

// marshalDown encodes a message of the log's owner.
func (c codec) marshalDown(f *cohereDown) (mem.BufferSlice, error) {
	if len(f.Invs) > MaxBatchKeys || len(f.Revokes) > MaxBatchKeys || len(f.Silent) > MaxSilent {
		return nil, errLimit
	}
	l, err := headLayout(f.Hello, f.View)
	if err != nil {
		return nil, err
	}
	lease := floorMicros(f.NearLease)
	l.total += sizeBool(downInView, f.InView) + sizeBool(downReset, f.Reset) + sizeUint(downSeq, f.Seq) +
		sizeBool(downRenewed, f.Renewed) + sizeUint(downNonce, f.Nonce) + sizeUint(downNearLease, lease)
	for i := range f.Invs {
		if err := f.Invs[i].check(); err != nil {
			return nil, err
		}
		l.total += sizeLen(downInvs, f.Invs[i].size())
	}
	for i := range f.Revokes {
		if v := &f.Revokes[i]; len(v.Keyspace) > MaxKeyspaceBytes || len(v.Key) > MaxKeyBytes {
			return nil, errLimit
		}
		l.total += sizeLen(downRevokes, f.Revokes[i].size())
	}
	for i := range f.Silent {
		if len(f.Silent[i].Member) > MaxNameBytes {
			return nil, errLimit
		}
		l.total += sizeLen(downSilent, f.Silent[i].size())
	}
	w, err := c.newWriter(l)
	if err != nil {
		return nil, err
	}
	w.head(f.Hello, f.View)
	w.bool(downInView, f.InView)
	w.bool(downReset, f.Reset)
	w.uint(downSeq, f.Seq)
	for i := range f.Invs {
		w.inv(&f.Invs[i])
	}
	for i := range f.Revokes {
		w.revoke(&f.Revokes[i])
	}
	w.bool(downRenewed, f.Renewed)
	w.uint(downNonce, f.Nonce)
	w.uint(downNearLease, lease)
	for i := range f.Silent {
		w.silence(&f.Silent[i])
	}
	return w.finish()
}

// layout is the size of a message before it is written.
type layout struct {
	total    int // bytes, without the content of attached values
	attached int // bytes of values that are attached by reference
	large    int // number of these
}

// headLayout begins a layout with the two fields every message begins with.
func headLayout(h *hello, view uint64) (layout, error) {
	l := layout{total: sizeFixed64(frameView, view)}
	if h == nil {
		return l, nil
	}
	if max(len(h.Cluster), len(h.Member), len(h.Addr)) > MaxNameBytes {
		return l, errLimit
	}
	l.total += sizeLen(frameHello, h.size())
	return l, nil
}

// item adds a request or a reply of n bytes, which end with its value.
func (l *layout) item(tag uint32, n int, value []byte) {
	l.total += sizeLen(tag, n)
	if len(value) >= scatterBytes {
		l.total -= len(value)
		l.attached += len(value)
		l.large++
	}
}

func (w *writer) head(h *hello, view uint64) {
	if h != nil {
		w.open(frameHello, h.size())
		w.hello(h)
	}
	w.fixed64(frameView, view)
}

func (h *hello) size() int {
	return sizeUint(helloProtocol, uint64(h.Protocol)) + sizeUint(helloFeatures, h.Features) +
		sizeBytes(helloCluster, len(h.Cluster)) + sizeBytes(helloMember, len(h.Member)) + sizeBytes(helloAddr, len(h.Addr)) +
		sizeFixed64(helloIncarnation, h.Incarnation) + sizeFixed64(helloView, h.View) + sizeUint(helloMaxValue, h.MaxValueBytes) +
		sizeUint(helloReplicas, uint64(h.Replicas))
}

func (w *writer) hello(h *hello) {
	w.uint(helloProtocol, uint64(h.Protocol))
	w.uint(helloFeatures, h.Features)
	w.str(helloCluster, h.Cluster)
	w.str(helloMember, h.Member)
	w.str(helloAddr, h.Addr)
	w.fixed64(helloIncarnation, h.Incarnation)
	w.fixed64(helloView, h.View)
	w.uint(helloMaxValue, h.MaxValueBytes)
	w.uint(helloReplicas, uint64(h.Replicas))
}

// budgetMicros is what is left of a request's time: a spent budget is 1 µs, because 0 would be none at all.
func (q *Request) budgetMicros() uint64 { return max(floorMicros(q.Budget), 1) }

func (q *Request) hasValue() bool { return q.HasValue || len(q.Value) > 0 }

// check reports why q cannot be sent. A frame with a bad request fails as a whole, so this is asked before q is queued.
func (q *Request) check() error {
	if len(q.Keyspace) > MaxKeyspaceBytes || len(q.Key) > MaxKeyBytes || len(q.Value) > MaxValueBytes ||
		len(q.Keys) > MaxBatchKeys || !tagsFit(q.Tags) {
		return errLimit
	}
	if len(q.Keys) == 0 {
		return nil
	}
	sum := 0
	for _, k := range q.Keys {
		if len(k) > MaxKeyBytes {
			return errLimit
		}
		sum += len(k)
	}
	if sum > maxKeysBytes {
		return errLimit
	}
	return nil
}

func tagsFit(tags []string) bool {
	if len(tags) > MaxTags {
		return false
	}
	for _, t := range tags {
		if len(t) > MaxTagBytes {
			return false
		}
	}
	return true
}

// wireBytes returns how many bytes q takes in a frame, but for its id.
func (q *Request) wireBytes() int {
	n := sizeUint(reqOp, uint64(q.Op)) + sizeUint(reqFlags, uint64(q.Flags)) +
		sizeBytes(reqKeyspace, len(q.Keyspace)) + sizeBytes(reqKey, len(q.Key)) +
		sizeUint(reqBudget, q.budgetMicros()) + sizeUint(reqLeaseLife, floorMicros(q.LeaseLife)) + sizeUint(reqNear, floorMicros(q.Near)) +
		sizeUint(reqVersion, q.Version) + sizeUint(reqHot, uint64(q.Hot)) +
		sizeFixed64(reqTokenInc, q.Token.Incarnation) + sizeUint(reqTokenNum, q.Token.Number) +
		sizeUint(reqAge, ceilMicros(q.Age)) + sizeUint(reqTTL, floorMicros(q.TTL)) + sizeUint(reqStaleFor, floorMicros(q.StaleFor)) +
		sizeUint(reqEpoch, q.Epoch) + sizeUint(reqTagPos, q.TagPos) +
		sizeBool(reqHasValue, q.hasValue()) + sizeBytes(reqValue, len(q.Value))
	for _, t := range q.Tags {
		n += sizeLen(reqTags, len(t))
	}
	for _, k := range q.Keys {
		n += sizeLen(reqKeys, len(k))
	}
	if q.Failure != (Failure{}) {
		n += sizeLen(reqFailure, q.Failure.size())
	}
	return n
}

func (w *writer) request(id uint32, q *Request) {
	w.fixed32(reqID, id)
	w.uint(reqOp, uint64(q.Op))
	w.uint(reqFlags, uint64(q.Flags))
	w.str(reqKeyspace, q.Keyspace)
	w.str(reqKey, q.Key)
	w.uint(reqBudget, q.budgetMicros())
	w.uint(reqLeaseLife, floorMicros(q.LeaseLife))
	w.uint(reqNear, floorMicros(q.Near))
	w.uint(reqVersion, q.Version)
	w.uint(reqHot, uint64(q.Hot))
	w.fixed64(reqTokenInc, q.Token.Incarnation)
	w.uint(reqTokenNum, q.Token.Number)
	w.uint(reqAge, ceilMicros(q.Age))
	w.uint(reqTTL, floorMicros(q.TTL))
	w.uint(reqStaleFor, floorMicros(q.StaleFor))
	w.uint(reqEpoch, q.Epoch)
	w.uint(reqTagPos, q.TagPos)
	for _, t := range q.Tags {
		w.item(reqTags, t)
	}
	for _, k := range q.Keys {
		w.item(reqKeys, k)
	}
	if q.Failure != (Failure{}) {
		w.open(reqFailure, q.Failure.size())
		w.failure(&q.Failure)
	}
	w.bool(reqHasValue, q.hasValue())
	w.value(reqValue, q.Value)
}

func (f *Failure) size() int {
	return sizeUint(failureKind, uint64(f.Kind)) + sizeBytes(failureCode, min(len(f.Code), MaxNameBytes)) +
		sizeBytes(failureText, min(len(f.Text), MaxFailureText)) + sizeBytes(failureMember, min(len(f.Member), MaxNameBytes))
}

func (w *writer) failure(f *Failure) {
	w.uint(failureKind, uint64(f.Kind))
	w.str(failureCode, cutTo(f.Code, MaxNameBytes))
	w.str(failureText, cutTo(f.Text, MaxFailureText))
	w.str(failureMember, cutTo(f.Member, MaxNameBytes))
}

func (r *Reply) hasValue() bool { return r.HasValue || len(r.Value) > 0 }

func (r *Reply) check() error {
	if len(r.Value) > MaxValueBytes || len(r.Failed) > MaxBatchKeys || len(r.Tags) > MaxTags {
		return errLimit
	}
	return nil
}

// wireBytes returns how many bytes r takes in a frame, but for its id.
func (r *Reply) wireBytes() int {
	n := sizeUint(repStatus, uint64(r.Status)) + sizeUint(repFlags, uint64(r.Flags)) + sizeUint(repSeq, r.Seq) +
		sizeUint(repAge, ceilMicros(r.Age)) + sizeUint(repTTL, floorMicros(r.TTL)) + sizeUint(repNear, floorMicros(r.Near)) +
		sizeUint(repVersion, r.Version) + sizeUint(repRate, uint64(r.Rate)) +
		sizeFixed64(repTokenInc, r.Token.Incarnation) + sizeUint(repTokenNum, r.Token.Number) +
		sizeUint(repLife, floorMicros(r.Life)) + sizeUint(repTagPos, r.TagPos) + sizeUint(repEpoch, r.Epoch) +
		sizeUint(repSize, r.Size) + sizeBytes(repFailed, packedSize(r.Failed)) + sizeBytes(repTags, 8*len(r.Tags)) + sizeUint(repWaited, floorMicros(r.Waited)) +
		sizeBool(repHasValue, r.hasValue()) + sizeBytes(repValue, len(r.Value))
	if r.Failure != (Failure{}) {
		n += sizeLen(repFailure, r.Failure.size())
	}
	return n
}

func (w *writer) reply(id uint32, r *Reply) {
	w.fixed32(repID, id)
	w.uint(repStatus, uint64(r.Status))
	w.uint(repFlags, uint64(r.Flags))
	w.uint(repSeq, r.Seq)
	w.uint(repAge, ceilMicros(r.Age))
	w.uint(repTTL, floorMicros(r.TTL))
	w.uint(repNear, floorMicros(r.Near))
	w.uint(repVersion, r.Version)
	w.uint(repRate, uint64(r.Rate))
	w.fixed64(repTokenInc, r.Token.Incarnation)
	w.uint(repTokenNum, r.Token.Number)
	w.uint(repLife, floorMicros(r.Life))
	w.uint(repTagPos, r.TagPos)
	w.uint(repEpoch, r.Epoch)
	if r.Failure != (Failure{}) {
		w.open(repFailure, r.Failure.size())
		w.failure(&r.Failure)
	}
	w.uint(repSize, r.Size)
	w.packed(repFailed, r.Failed)
	w.bool(repHasValue, r.hasValue())
	w.value(repValue, r.Value)
	w.hashes(repTags, r.Tags)
	w.uint(repWaited, floorMicros(r.Waited))
}

func (w *writer) hashes(tag uint32, hs []uint64) {
	if len(hs) == 0 {
		return
	}
	w.open(tag, 8*len(hs))
	for _, h := range hs {
		w.b = binary.LittleEndian.AppendUint64(w.b, h)
	}
}

func packedSize(vs []uint32) int {
	n := 0
	for _, v := range vs {
		n += sizeVarint(uint64(v))
	}
	return n
}

func (w *writer) packed(tag uint32, vs []uint32) {
	if len(vs) == 0 {
		return
	}
	w.open(tag, packedSize(vs))
	for _, v := range vs {
		w.b = binary.AppendUvarint(w.b, uint64(v))
	}
}

func (v *Inv) check() error {
	if len(v.Keyspace) > MaxKeyspaceBytes || len(v.Key) > MaxKeyBytes || !tagsFit(v.Tags) {
		return errLimit
	}
	return nil
}

func (v *Inv) size() int {
	n := sizeUint(invSeq, v.Seq) + sizeBytes(invKeyspace, len(v.Keyspace)) + sizeBytes(invKey, len(v.Key)) +
		sizeBool(invAll, v.All) + sizeUint(invEpoch, v.Epoch)
	for _, t := range v.Tags {
		n += sizeLen(invTags, len(t))
	}
	return n
}

func (w *writer) inv(v *Inv) {
	w.open(downInvs, v.size())
	w.uint(invSeq, v.Seq)
	w.str(invKeyspace, v.Keyspace)
	w.str(invKey, v.Key)
	w.bool(invAll, v.All)
	w.uint(invEpoch, v.Epoch)
	for _, t := range v.Tags {
		w.item(invTags, t)
	}
}

func (v *Revoke) size() int {
	return sizeBytes(revokeKeyspace, len(v.Keyspace)) + sizeBytes(revokeKey, len(v.Key)) +
		sizeFixed64(revokeTokenInc, v.Token.Incarnation) + sizeUint(revokeTokenNum, v.Token.Number)
}

func (w *writer) revoke(v *Revoke) {
	w.open(downRevokes, v.size())
	w.str(revokeKeyspace, v.Keyspace)
	w.str(revokeKey, v.Key)
	w.fixed64(revokeTokenInc, v.Token.Incarnation)
	w.uint(revokeTokenNum, v.Token.Number)
}

func (v *Silence) size() int {
	return sizeBytes(silenceMember, len(v.Member)) + sizeUint(silenceAge, floorMicros(v.Age))
}

// silence rounds the age down: nobody becomes silent for longer on the way.
func (w *writer) silence(v *Silence) {
	w.open(downSilent, v.size())
	w.str(silenceMember, v.Member)
	w.uint(silenceAge, floorMicros(v.Age))
}
