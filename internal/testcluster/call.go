package testcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/nearcache/nearcache"
)

// Call is one call of the API on a child.
type Call struct {
	Op       Op
	Keyspace string
	Keys     []string
	Value    string // to Set
}

// Op names a method of nearcache.Cache.
type Op string

// The methods that a child can be told to call.
const (
	Get           Op = "Get" // of one key after the other
	GetMany       Op = "GetMany"
	Peek          Op = "Peek"
	Set           Op = "Set"
	Invalidate    Op = "Invalidate"
	InvalidateAll Op = "InvalidateAll"
)

// Answer is what a call came to for one key.
type Answer struct {
	Value  string
	Member string // to Get: who answered
	Error  string // one of the kinds below, or an error's text; empty: none
}

// The kinds of errors in an Answer that tests expect.
const (
	NotFound = "not found" // the key does not exist, or Peek found nothing
	Known    = "known"     // the loader's error kept its identity
	Failed   = "failed"    // any other error of the loader
	Panicked = "panicked"
)

// What the origin answers instead of a value: see child.load.
const (
	StatusKnown = http.StatusConflict            // the loader's error is one that keeps its identity
	StatusPanic = http.StatusInternalServerError // the loader panics
)

var errKnown = errors.New("an error that every member knows")

// call carries out one call.
func (c *child) call(ctx context.Context, call *Call) []Answer {
	cache := c.caches[call.Keyspace]
	answers := make([]Answer, max(len(call.Keys), 1))
	var err error
	switch call.Op {
	case GetMany:
		return getMany(ctx, cache, call.Keys)
	case Invalidate:
		err = cache.Invalidate(ctx, call.Keys...)
	case InvalidateAll:
		err = cache.InvalidateAll(ctx)
	default:
		for i, key := range call.Keys {
			answers[i] = callOne(ctx, cache, call, key)
		}
		return answers
	}
	for i := range answers {
		answers[i].Error = kindOf(err)
	}
	return answers
}

func getMany(ctx context.Context, cache *nearcache.Cache[string], keys []string) []Answer {
	values, err := cache.GetMany(ctx, keys)
	failed := &nearcache.BatchError{}
	batch := errors.As(err, &failed)
	answers := make([]Answer, len(keys))
	for i, key := range keys {
		v, ok := values[key]
		a := Answer{Value: v, Error: kindOf(failed.Errs[key])}
		switch {
		case err != nil && !batch:
			a.Error = kindOf(err)
		case !ok && a.Error == "":
			a.Error = NotFound
		}
		answers[i] = a
	}
	return answers
}

func callOne(ctx context.Context, cache *nearcache.Cache[string], call *Call, key string) (a Answer) {
	var (
		ok   = true
		info nearcache.Info
		err  error
	)
	switch call.Op {
	case Get:
		a.Value, info, err = cache.GetInfo(ctx, key)
		a.Member = info.Member
	case Peek:
		a.Value, ok, err = cache.Peek(ctx, key)
	case Set:
		_, err = cache.Set(ctx, key, call.Value)
	default:
		err = fmt.Errorf("no such call: %s", call.Op)
	}
	if a.Error = kindOf(err); !ok && err == nil {
		a.Error = NotFound
	}
	return a
}

func kindOf(err error) string {
	var (
		load     *nearcache.LoadError
		panicked *nearcache.PanicError
	)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, nearcache.ErrNotFound):
		return NotFound
	case errors.Is(err, errKnown):
		return Known
	case errors.As(err, &panicked):
		return Panicked
	case errors.As(err, &load):
		return Failed
	}
	return err.Error()
}

// load asks the origin, which is the parent. It answers with the value, or with a status that says what the loader does instead.
func (c *child) load(ctx context.Context, key string) (string, error) {
	q := url.Values{"key": {key}, "by": {c.settings.ID}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.settings.Origin+"?"+q.Encode(), nil)
	if err != nil {
		return "", err
	}
	req.Close = true // a connection that is kept would be counted as the node's
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return "", nearcache.ErrNotFound
	case StatusKnown:
		return "", fmt.Errorf("origin: %w", errKnown)
	case StatusPanic:
		panic("origin: " + resp.Status)
	default:
		return "", errors.New(resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}
