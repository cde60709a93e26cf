package nearcache

import (
	"context"
	"slices"
	"strings"

	"github.com/nearcache/nearcache/internal/tag"
	"github.com/nearcache/nearcache/internal/transport"
	"github.com/nearcache/nearcache/invalidation"
)

// InvalidateTag drops every value that has one of the tags (Config.TagsOf), on every member, as Invalidate does for keys: call it after
// the database commit. It takes no longer for many values than for few. A value that is being loaded meanwhile is dropped too if it
// turns out to have one of the tags. An absence has none, and stays.
//
// A tag has 1 to 255 bytes. Every member has to confirm, whatever has the tag. A value goes too if its tags are not known (Config.TagsOf), and
// now and then because one of them is taken for another: with 1,000 tags invalidated during its lifetime, one in 65 per tag that it has.
//
// Errors: ErrInvalidTag, before anything was done; else those of Invalidate.
func (c *Cache[V]) InvalidateTag(ctx context.Context, tags ...string) error {
	return c.invalidateTags(ctx, tags)
}

func (ks *keyspace) invalidateTags(ctx context.Context, tags []string) error {
	if slices.ContainsFunc(tags, invalidTag) {
		return ErrInvalidTag
	}
	if len(tags) == 0 {
		return nil
	}
	began := ks.node.clock.Exact()
	ctx, cancel, err := ks.mutable(ctx)
	switch {
	case err == nil:
		defer cancel()
		err = ks.tell(ctx, ks.newTagTelling(tags))
	case isContextError(err): // as in invalidate
		for part := range slices.Chunk(tags, transport.MaxTags) {
			ks.dropTags(part)
		}
		err = &PartialError{Tags: slices.Clone(tags), StaleFor: ks.staleFor(), Err: err}
	default:
		return err
	}
	hashes, now := tag.Hashes(tags), ks.node.clock.Exact()
	ks.ownTags.Invalidated(hashes, began, now, ks.remembered(err))
	ks.local.forgetTags(hashes, now)
	return err
}

// tagsRequest makes the request to drop what has one of the tags, transport.MaxTags at most. A member that knows no tags takes it for the
// whole keyspace.
func (n *Node) tagsRequest(keyspace string, tags []string) *transport.Request {
	req := n.invalidateRequest(keyspace, nil, 0)
	req.Tags = tags
	return req
}

func invalidTag(t string) bool { return t == "" || len(t) > transport.MaxTagBytes }

// dropTags invalidates tags, transport.MaxTags at most, on this node. tags may alias a buffer.
//
// Order: first what this node owns, then the event. Who hears the event and asks for a value again does not get the old one.
func (ks *keyspace) dropTags(tags []string) {
	now := ks.node.clock.Exact()
	hashes := tag.Hashes(tags)
	ks.shard.InvalidateTags(hashes, now)
	kept := make([]string, len(tags))
	for i, t := range tags {
		kept[i] = strings.Clone(t)
	}
	ks.node.log.Append(invalidation.Event{Keyspace: ks.name, All: true, Tags: kept})
	ks.local.forgetTags(hashes, now)
	ks.count.tagsInvalidated.Add(uint64(len(tags)))
	ks.node.log.Wake()
}

// tagsOf returns the tags of a value, and whether they are known. What Config.TagsOf returns beyond the limits is not known: then the value
// is taken to have every tag.
func (c *Cache[V]) tagsOf(key string, v V) (tags []string, known bool) {
	if c.cfg.TagsOf == nil {
		return nil, false
	}
	tags = slices.Clone(c.cfg.TagsOf(key, v)) // the application may reuse its memory
	if len(tags) > transport.MaxTags || slices.ContainsFunc(tags, invalidTag) {
		c.count.overTagged.Add(1)
		return nil, false
	}
	return tags, true
}

// markOf returns the mark of a value with these tags, if they are known. tags may alias a buffer.
func markOf(tags []string, known bool) tag.Mark {
	if !known {
		return tag.Mark{}
	}
	return tag.Of(tag.Hashes(tags))
}

// answeredMark returns the mark of an answer's value.
func answeredMark(rep *transport.Reply) tag.Mark {
	if rep.Flags&transport.ReplyTagged == 0 {
		return tag.Mark{}
	}
	return tag.Of(rep.Tags)
}
