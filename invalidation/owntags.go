package invalidation

import (
	"encoding/binary"
	"slices"
	"time"
)

// OwnTags is OwnView for tags (R15), by their hashes.
type OwnTags struct{ view *OwnView }

// anyTag is the key under which the view has every invalidation of a tag: what has tags that are not known may have any.
const anyTag = ""

// NewOwnTags returns a view in which no tag was invalidated.
func NewOwnTags(answer time.Duration) *OwnTags { return &OwnTags{NewOwnView(answer)} }

// Invalidated is OwnView.Invalidated for tags.
func (o *OwnTags) Invalidated(hashes []uint64, at, now int64, keep time.Duration) {
	keys := []string{anyTag}
	for _, h := range hashes {
		keys = append(keys, tagKey(h))
	}
	o.view.Invalidated(keys, at, now, keep)
}

// Active is OwnView.Active.
func (o *OwnTags) Active(asked int64) bool { return o.view.Active(asked) }

// Old is OwnView.Old for a value with these tags. If known is false its tags are not known.
func (o *OwnTags) Old(hashes []uint64, known bool, loaded, asked int64) bool {
	if !o.Active(asked) {
		return false
	}
	if !known {
		return o.view.Old(anyTag, loaded, asked)
	}
	return slices.ContainsFunc(hashes, func(h uint64) bool { return o.view.Old(tagKey(h), loaded, asked) })
}

// OldCopy is OwnView.OldCopy for a stale copy with these tags.
func (o *OwnTags) OldCopy(hashes []uint64, known bool, loaded int64) bool {
	if !known {
		return o.view.OldCopy(anyTag, loaded)
	}
	return slices.ContainsFunc(hashes, func(h uint64) bool { return o.view.OldCopy(tagKey(h), loaded) })
}

// Tick is OwnView.Tick.
func (o *OwnTags) Tick(now int64) { o.view.Tick(now) }

func tagKey(hash uint64) string { return string(binary.LittleEndian.AppendUint64(nil, hash)) }
