package nearcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nearcache/nearcache/internal/origin"
	"github.com/nearcache/nearcache/internal/transport"
)

// This file is the only place where errors become Failures of the wire and Failures become errors.

// failureKind classifies what ended a load without a value. ctx is the flight's.
func (ks *keyspace) failureKind(ctx context.Context, err error) transport.FailureKind {
	var p *origin.PanicError
	var own *PanicError
	switch {
	case ks.ctx.Err() != nil:
		return transport.FailureClosed
	case ctx.Err() != nil:
		return transport.FailureCanceled
	case errors.Is(err, origin.ErrShed):
		return transport.FailureShed
	case errors.Is(err, origin.ErrTimeout):
		return transport.FailureTimeout
	case errors.As(err, &p), errors.As(err, &own):
		return transport.FailurePanic
	}
	return transport.FailureLoad
}

// loadFailed is what callers on this node see of a load that failed here.
func (ks *keyspace) loadFailed(key string, kind transport.FailureKind, err error) error {
	switch kind {
	case transport.FailureClosed:
		return ErrClosed
	case transport.FailureCanceled:
		return context.Canceled // nobody is left to see it
	case transport.FailureShed:
		return ks.overloaded(retryAfter(err))
	}
	ks.count.loadErrors.Add(1)
	switch kind {
	case transport.FailureTimeout:
		return ErrLoadTimeout
	case transport.FailurePanic:
		if p, ok := errors.AsType[*origin.PanicError](err); ok {
			return &PanicError{Value: p.Value, Stack: p.Stack}
		}
		return err
	}
	return &LoadError{Keyspace: ks.name, Key: key, Member: ks.node.ID(), Err: err}
}

// overloaded is the error of a load that was shed.
func (ks *keyspace) overloaded(retryAfter time.Duration) error {
	return &OverloadError{Keyspace: ks.name, RetryAfter: retryAfter}
}

// retryAfter is the hint of an error of a load that was shed.
func retryAfter(err error) time.Duration {
	if shed, ok := errors.AsType[*origin.ShedError](err); ok {
		return shed.RetryAfter
	}
	return 0
}

// toWire is what other members hear of it.
func (ks *keyspace) toWire(kind transport.FailureKind, err error) transport.Failure {
	f := transport.Failure{Kind: kind, Member: ks.node.ID()}
	if p, ok := errors.AsType[*origin.PanicError](err); ok {
		err = &PanicError{Value: p.Value}
	}
	if kind == transport.FailureShed {
		f.Code = retryAfter(err).String()
	}
	f.Text = cut(fmt.Sprint(err), transport.MaxFailureText) // fmt survives the Error method of a nil pointer
	if kind == transport.FailureLoad {
		for _, code := range slices.Sorted(maps.Keys(ks.policy.errors)) { // the same on every member
			if errors.Is(err, ks.policy.errors[code]) {
				f.Code = code
				break
			}
		}
	}
	return f
}

// fromWire is the error that a Failure stands for, the same as on the member where it happened.
func (ks *keyspace) fromWire(key string, f *transport.Failure) error {
	switch f.Kind {
	case transport.FailureShed:
		const most = time.Minute
		d, _ := time.ParseDuration(f.Code) // 0 from one who gives no hint
		return ks.overloaded(min(max(d, ks.policy.queueTimeout, 0), most))
	case transport.FailureTimeout:
		return ErrLoadTimeout
	case transport.FailurePanic:
		return &PanicError{Value: strings.TrimPrefix(f.Text, (&PanicError{Value: ""}).Error())}
	case transport.FailureTooLarge:
		return ErrValueTooLarge
	default:
	}
	e := &LoadError{Keyspace: ks.name, Key: key, Member: f.Member, Err: errors.New(f.Text)}
	if known := ks.policy.errors[f.Code]; f.Code != "" && known != nil {
		e.Err = &remoteError{text: f.Text, is: known}
	}
	return e
}

// remoteError is a loader's error that kept its identity across members.
type remoteError struct {
	text string
	is   error
}

// Error implements error.
func (e *remoteError) Error() string { return e.text }

// Unwrap returns the error of Config.Errors with the same code.
func (e *remoteError) Unwrap() error { return e.is }

// cut shortens s to at most n bytes, not inside a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
