package transport

import "google.golang.org/grpc/mem"

func (f *requestFrame) unmarshal(data mem.BufferSlice) error {
	f.release()
	data.Ref()
	f.hold = append(f.hold, data...)
	r := newReader(data, true)
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case frameHello:
			r.hello(&f.Hello)
		case frameView:
			f.View = r.fixed64()
		case frameItems:
			if len(f.ops) == MaxBatchOps {
				r.fail(errLimit)
				break
			}
			if n := len(f.ops); n < cap(f.ops) {
				f.ops = f.ops[:n+1] // release left it empty
			} else {
				f.ops = append(f.ops, Request{})
			}
			f.IDs = append(f.IDs, r.request(&f.ops[len(f.ops)-1]))
		default:
			r.skip(tag)
		}
	}
	if r.err != nil {
		f.release()
		return r.err
	}
	for i := range f.ops {
		settle(&f.ops[i].HasValue, &f.ops[i].Value)
		f.Reqs = append(f.Reqs, &f.ops[i])
	}
	return nil
}

func (f *replyFrame) unmarshal(data mem.BufferSlice) error {
	f.reset()
	r := newReader(data, false)
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case frameHello:
			r.hello(&f.Hello)
		case frameView:
			f.View = r.fixed64()
		case repFrameAcked:
			f.Acked = r.uint32()
		case repFrameInView:
			f.InView = r.bool()
		case repFrameDraining:
			f.Draining = r.bool()
		case repFrameItems:
			if len(f.Reps) == MaxBatchOps {
				r.fail(errLimit)
				break
			}
			if n := len(f.Reps); n < cap(f.Reps) {
				f.Reps = f.Reps[:n+1] // reset left it empty
			} else {
				f.Reps = append(f.Reps, Reply{})
			}
			f.IDs = append(f.IDs, r.reply(&f.Reps[len(f.Reps)-1]))
		default:
			r.skip(tag)
		}
	}
	if r.err != nil {
		f.reset()
		return r.err
	}
	for i := range f.Reps {
		settle(&f.Reps[i].HasValue, &f.Reps[i].Value)
	}
	return nil
}

func (f *bulkRequest) unmarshal(data mem.BufferSlice) error {
	*f = bulkRequest{}
	r := newReader(data, false)
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case frameHello:
			r.hello(&f.Hello)
		case frameView:
			f.View = r.fixed64()
		case frameItems:
			r.request(&f.Req)
		default:
			r.skip(tag)
		}
	}
	settle(&f.Req.HasValue, &f.Req.Value)
	if r.err != nil {
		*f = bulkRequest{}
	}
	return r.err
}

func (f *bulkReply) unmarshal(data mem.BufferSlice) error {
	*f = bulkReply{}
	r := newReader(data, false)
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case frameHello:
			r.hello(&f.Hello)
		case frameView:
			f.View = r.fixed64()
		case frameItems:
			r.reply(&f.Rep)
		default:
			r.skip(tag)
		}
	}
	settle(&f.Rep.HasValue, &f.Rep.Value)
	if r.err != nil {
		*f = bulkReply{}
	}
	return r.err
}

func (f *cohereUp) unmarshal(data mem.BufferSlice) error {
	*f = cohereUp{}
	r := newReader(data, false)
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case frameHello:
			r.hello(&f.Hello)
		case frameView:
			f.View = r.fixed64()
		case upNonce:
			f.Nonce = r.uint()
		default:
			r.skip(tag)
		}
	}
	if r.err != nil {
		*f = cohereUp{}
	}
	return r.err
}

// unmarshal copies the message once; all its strings alias that copy, which nobody writes to and the garbage collector frees.
func (f *cohereDown) unmarshal(data mem.BufferSlice) error {
	*f = cohereDown{}
	r := newReader(mem.BufferSlice{mem.SliceBuffer(data.Materialize())}, true)
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case frameHello:
			r.hello(&f.Hello)
		case frameView:
			f.View = r.fixed64()
		case downInView:
			f.InView = r.bool()
		case downReset:
			f.Reset = r.bool()
		case downSeq:
			f.Seq = r.uint()
		case downInvs:
			r.inv(&f.Invs)
		case downRevokes:
			r.revoke(&f.Revokes)
		case downRenewed:
			f.Renewed = r.bool()
		case downNonce:
			f.Nonce = r.uint()
		case downNearLease:
			f.NearLease = r.duration()
		case downSilent:
			r.silence(&f.Silent)
		default:
			r.skip(tag)
		}
	}
	if r.err != nil {
		*f = cohereDown{}
	}
	return r.err
}

// hello reads a Hello; as with every message field, a second one adds to the first. Its strings are copies.
func (r *reader) hello(to **hello) {
	if *to == nil {
		*to = &hello{}
	}
	h := *to
	alias := r.alias
	r.alias = false
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case helloProtocol:
			h.Protocol = r.uint32()
		case helloFeatures:
			h.Features = r.uint()
		case helloCluster:
			h.Cluster = r.str(MaxNameBytes)
		case helloMember:
			h.Member = r.str(MaxNameBytes)
		case helloAddr:
			h.Addr = r.str(MaxNameBytes)
		case helloIncarnation:
			h.Incarnation = r.fixed64()
		case helloView:
			h.View = r.fixed64()
		case helloMaxValue:
			h.MaxValueBytes = r.uint()
		case helloReplicas:
			h.Replicas = r.uint32()
		default:
			r.skip(tag)
		}
	}
	r.close(outer)
	r.alias = alias
}

// request reads a Request into q and returns its id.
func (r *reader) request(q *Request) (id uint32) {
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case reqID:
			id = r.fixed32()
		case reqOp:
			q.Op = Op(r.small())
		case reqFlags:
			q.Flags = r.uint32()
		case reqKeyspace:
			q.Keyspace = r.str(MaxKeyspaceBytes)
		case reqKey:
			q.Key = r.str(MaxKeyBytes)
		case reqBudget:
			q.Budget = r.duration()
		case reqLeaseLife:
			q.LeaseLife = r.duration()
		case reqNear:
			q.Near = r.duration()
		case reqVersion:
			q.Version = r.uint()
		case reqHot:
			q.Hot = r.uint32()
		default:
			r.fillFields(tag, q)
		}
	}
	r.close(outer)
	return id
}

// fillFields reads the fields that a plain Get does not have.
func (r *reader) fillFields(tag uint32, q *Request) {
	switch tag {
	case reqTokenInc:
		q.Token.Incarnation = r.fixed64()
	case reqTokenNum:
		q.Token.Number = r.uint()
	case reqAge:
		q.Age = r.duration()
	case reqTTL:
		q.TTL = r.duration()
	case reqStaleFor:
		q.StaleFor = r.duration()
	case reqEpoch:
		q.Epoch = r.uint()
	case reqTagPos:
		q.TagPos = r.uint()
	case reqTags:
		q.Tags = r.list(q.Tags, MaxTags, MaxTagBytes)
	case reqKeys:
		q.Keys = r.list(q.Keys, MaxBatchKeys, MaxKeyBytes)
	case reqFailure:
		r.failure(&q.Failure)
	case reqHasValue:
		q.HasValue = r.bool()
	case reqValue:
		q.Value = r.value()
	default:
		r.skip(tag)
	}
}

// value reads a value into a slice of its own.
func (r *reader) value() []byte {
	n := r.bounded(MaxValueBytes)
	if n == 0 {
		return nil
	}
	return r.bytes(n)
}

// settle makes what two fields say about a value one: bytes are a value, and an empty value is not nil.
func settle(has *bool, value *[]byte) {
	*has = *has || len(*value) > 0
	if *has && *value == nil {
		*value = []byte{}
	}
}

// list reads one more element of a list of strings.
func (r *reader) list(s []string, count, size int) []string {
	if len(s) == count {
		r.fail(errLimit)
		return s
	}
	return append(s, r.str(size))
}

func (r *reader) failure(f *Failure) {
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case failureKind:
			f.Kind = FailureKind(r.small())
		case failureCode:
			f.Code = r.str(MaxNameBytes)
		case failureText:
			f.Text = r.str(MaxFailureText)
		case failureMember:
			f.Member = r.str(MaxNameBytes)
		default:
			r.skip(tag)
		}
	}
	r.close(outer)
}

// reply reads a Reply into p and returns the id of its request.
func (r *reader) reply(p *Reply) (id uint32) {
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case repID:
			id = r.fixed32()
		case repStatus:
			p.Status = Status(r.small())
		case repFlags:
			p.Flags = r.uint32()
		case repSeq:
			p.Seq = r.uint()
		case repAge:
			p.Age = r.duration()
		case repTTL:
			p.TTL = r.duration()
		case repNear:
			p.Near = r.duration()
		case repVersion:
			p.Version = r.uint()
		case repRate:
			p.Rate = r.uint32()
		case repEpoch:
			p.Epoch = r.uint()
		case repHasValue:
			p.HasValue = r.bool()
		case repValue:
			p.Value = r.value()
		default:
			r.missFields(tag, p)
		}
	}
	r.close(outer)
	return id
}

// missFields reads the fields that a plain hit does not have.
func (r *reader) missFields(tag uint32, p *Reply) {
	switch tag {
	case repTokenInc:
		p.Token.Incarnation = r.fixed64()
	case repTokenNum:
		p.Token.Number = r.uint()
	case repLife:
		p.Life = r.duration()
	case repTagPos:
		p.TagPos = r.uint()
	case repFailure:
		r.failure(&p.Failure)
	case repSize:
		p.Size = r.uint()
	case repFailed:
		outer := r.open()
		for r.left > 0 {
			r.failedKey(p)
		}
		r.close(outer)
	case repFailedOne:
		r.failedKey(p)
	case repTags:
		outer := r.open()
		for r.left > 0 {
			r.tagHash(p)
		}
		r.close(outer)
	case repTagsOne:
		r.tagHash(p)
	case repWaited:
		p.Waited = r.duration()
	default:
		r.skip(tag)
	}
}

func (r *reader) tagHash(p *Reply) {
	if len(p.Tags) == MaxTags {
		r.fail(errLimit)
		return
	}
	p.Tags = append(p.Tags, r.fixed64())
}

func (r *reader) failedKey(p *Reply) {
	if len(p.Failed) == MaxBatchKeys {
		r.fail(errLimit)
		return
	}
	p.Failed = append(p.Failed, r.uint32())
}

func (r *reader) inv(to *[]Inv) {
	if len(*to) == MaxBatchKeys {
		r.fail(errLimit)
		return
	}
	*to = append(*to, Inv{})
	v := &(*to)[len(*to)-1]
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case invSeq:
			v.Seq = r.uint()
		case invKeyspace:
			v.Keyspace = r.str(MaxKeyspaceBytes)
		case invKey:
			v.Key = r.str(MaxKeyBytes)
		case invAll:
			v.All = r.bool()
		case invEpoch:
			v.Epoch = r.uint()
		case invTags:
			v.Tags = r.list(v.Tags, MaxTags, MaxTagBytes)
		default:
			r.skip(tag)
		}
	}
	r.close(outer)
}

func (r *reader) revoke(to *[]Revoke) {
	if len(*to) == MaxBatchKeys {
		r.fail(errLimit)
		return
	}
	*to = append(*to, Revoke{})
	v := &(*to)[len(*to)-1]
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case revokeKeyspace:
			v.Keyspace = r.str(MaxKeyspaceBytes)
		case revokeKey:
			v.Key = r.str(MaxKeyBytes)
		case revokeTokenInc:
			v.Token.Incarnation = r.fixed64()
		case revokeTokenNum:
			v.Token.Number = r.uint()
		default:
			r.skip(tag)
		}
	}
	r.close(outer)
}

func (r *reader) silence(to *[]Silence) {
	if len(*to) == MaxSilent {
		r.fail(errLimit)
		return
	}
	*to = append(*to, Silence{})
	v := &(*to)[len(*to)-1]
	outer := r.open()
	for r.left > 0 {
		switch tag := r.tag(); tag {
		case silenceMember:
			v.Member = r.str(MaxNameBytes)
		case silenceAge:
			v.Age = r.duration()
		default:
			r.skip(tag)
		}
	}
	r.close(outer)
}
