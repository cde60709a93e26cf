package transport

// Wire types of protobuf, the low three bits of a tag.
const (
	varint  = 0
	fixed64 = 1
	lenPre  = 2 // length-prefixed: bytes, messages, packed lists
	fixed32 = 5
)

// The tags of peer.proto: a field's number and its wire type. The tests compare them with the generated code.

// Fields at the beginning of every message; frameItems is also the request or reply of the bulk messages.
const (
	frameHello = 1<<3 | lenPre
	frameView  = 2<<3 | fixed64
	frameItems = 3<<3 | lenPre

	repFrameAcked    = 3<<3 | varint
	repFrameInView   = 4<<3 | varint
	repFrameDraining = 5<<3 | varint
	repFrameItems    = 6<<3 | lenPre

	upNonce = 3<<3 | varint

	downInView    = 3<<3 | varint
	downReset     = 4<<3 | varint
	downSeq       = 5<<3 | varint
	downInvs      = 6<<3 | lenPre
	downRevokes   = 7<<3 | lenPre
	downRenewed   = 8<<3 | varint
	downNonce     = 9<<3 | varint
	downNearLease = 10<<3 | varint
	downSilent    = 11<<3 | lenPre
)

const (
	silenceMember = 1<<3 | lenPre
	silenceAge    = 2<<3 | varint
)

const (
	helloProtocol    = 1<<3 | varint
	helloFeatures    = 2<<3 | varint
	helloCluster     = 3<<3 | lenPre
	helloMember      = 4<<3 | lenPre
	helloAddr        = 5<<3 | lenPre
	helloIncarnation = 6<<3 | fixed64
	helloView        = 7<<3 | fixed64
	helloMaxValue    = 8<<3 | varint
	helloReplicas    = 9<<3 | varint
)

const (
	reqID        = 1<<3 | fixed32
	reqOp        = 2<<3 | varint
	reqFlags     = 3<<3 | varint
	reqKeyspace  = 4<<3 | lenPre
	reqKey       = 5<<3 | lenPre
	reqBudget    = 6<<3 | varint
	reqLeaseLife = 7<<3 | varint
	reqNear      = 8<<3 | varint
	reqVersion   = 9<<3 | varint
	reqHot       = 10<<3 | varint
	reqTokenInc  = 11<<3 | fixed64
	reqTokenNum  = 12<<3 | varint
	reqAge       = 13<<3 | varint
	reqTTL       = 14<<3 | varint
	reqStaleFor  = 15<<3 | varint
	reqEpoch     = 16<<3 | varint
	reqTagPos    = 17<<3 | varint
	reqTags      = 18<<3 | lenPre
	reqKeys      = 19<<3 | lenPre
	reqFailure   = 20<<3 | lenPre
	reqHasValue  = 21<<3 | varint
	reqValue     = 22<<3 | lenPre
)

const (
	failureKind   = 1<<3 | varint
	failureCode   = 2<<3 | lenPre
	failureText   = 3<<3 | lenPre
	failureMember = 4<<3 | lenPre
)

const (
	repID        = 1<<3 | fixed32
	repStatus    = 2<<3 | varint
	repFlags     = 3<<3 | varint
	repSeq       = 4<<3 | varint
	repAge       = 5<<3 | varint
	repTTL       = 6<<3 | varint
	repNear      = 7<<3 | varint
	repVersion   = 8<<3 | varint
	repRate      = 9<<3 | varint
	repTokenInc  = 10<<3 | fixed64
	repTokenNum  = 11<<3 | varint
	repLife      = 12<<3 | varint
	repTagPos    = 13<<3 | varint
	repEpoch     = 14<<3 | varint
	repFailure   = 15<<3 | lenPre
	repSize      = 16<<3 | varint
	repFailed    = 17<<3 | lenPre // packed, as proto3 has it
	repFailedOne = 17<<3 | varint // one element: a decoder has to take both
	repHasValue  = 18<<3 | varint
	repValue     = 19<<3 | lenPre
	repTags      = 20<<3 | lenPre // packed
	repTagsOne   = 20<<3 | fixed64
	repWaited    = 21<<3 | varint
)

const (
	invSeq      = 1<<3 | varint
	invKeyspace = 2<<3 | lenPre
	invKey      = 3<<3 | lenPre
	invAll      = 4<<3 | varint
	invEpoch    = 5<<3 | varint
	invTags     = 6<<3 | lenPre
)

const (
	revokeKeyspace = 1<<3 | lenPre
	revokeKey      = 2<<3 | lenPre
	revokeTokenInc = 3<<3 | fixed64
	revokeTokenNum = 4<<3 | varint
)
