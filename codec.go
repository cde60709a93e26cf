package nearcache

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"

	"google.golang.org/protobuf/proto"
)

// Codec turns values into bytes and back. It is called concurrently.
type Codec[V any] interface {
	// Append appends the encoding of v to dst and returns the extended slice. It must not keep dst.
	Append(dst []byte, v V) ([]byte, error)
	// Decode returns the value that b encodes. It must not keep b or change it.
	Decode(b []byte) (V, error)
}

// borrower is a codec whose values are the encoded bytes themselves, which then are shared and never written again.
type borrower[V any] interface {
	borrow(b []byte) V
}

// defaultCodec chooses by the type of V.
func defaultCodec[V any]() (Codec[V], error) {
	var v V
	t := reflect.TypeFor[V]()
	switch any(v).(type) {
	case []byte:
		return any(bytesCodec{}).(Codec[V]), nil
	case string:
		return any(stringCodec{}).(Codec[V]), nil
	case proto.Message:
		if t.Kind() == reflect.Pointer {
			return protoCodec[V]{elem: t.Elem()}, nil
		}
	}
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() > 0 { // what it decodes to is not known
			return nil, fmt.Errorf("no default for the interface type %v", t)
		}
	case reflect.Chan, reflect.Func:
		return nil, fmt.Errorf("no default for %v", t)
	default:
	}
	return jsonCodec[V]{}, nil
}

type bytesCodec struct{}

func (bytesCodec) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }

func (bytesCodec) Decode(b []byte) ([]byte, error) { return append([]byte{}, b...), nil }

// borrow shares b with its capacity cut, so that an append copies.
func (bytesCodec) borrow(b []byte) []byte { return slices.Clip(b) }

type stringCodec struct{}

func (stringCodec) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }

func (stringCodec) Decode(b []byte) (string, error) { return string(b), nil }

type protoCodec[V any] struct{ elem reflect.Type }

func (protoCodec[V]) Append(dst []byte, v V) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(dst, any(v).(proto.Message))
}

func (c protoCodec[V]) Decode(b []byte) (V, error) {
	m := reflect.New(c.elem).Interface().(proto.Message)
	err := proto.Unmarshal(b, m)
	return m.(V), err
}

type jsonCodec[V any] struct{}

func (jsonCodec[V]) Append(dst []byte, v V) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (jsonCodec[V]) Decode(b []byte) (V, error) {
	var v V
	err := json.Unmarshal(b, &v)
	return v, err
}

// decode returns the value of b, which is never written again. A codec that panics fails this value only.
func decode[V any](c Codec[V], b []byte) (v V, err error) {
	if c, ok := c.(borrower[V]); ok {
		return c.borrow(b), nil
	}
	defer recoverTo(&err)
	v, err = c.Decode(b)
	if bytes, ok := any(v).([]byte); ok {
		v = any(slices.Clip(bytes)).(V)
	}
	return v, err
}

// own returns what a loader returned, encoded as b, as the cache keeps and shares it: bytes the loader may reuse.
func own[V any](c Codec[V], v V, b []byte) V {
	if c, ok := c.(borrower[V]); ok {
		return c.borrow(b)
	}
	if bytes, ok := any(v).([]byte); ok {
		return any(slices.Clip(slices.Clone(bytes))).(V)
	}
	return v
}

// encode returns bytes of its own. A codec that panics fails this value only.
func encode[V any](c Codec[V], v V) (b []byte, err error) {
	defer recoverTo(&err)
	b, err = c.Append(nil, v)
	if err != nil {
		return nil, fmt.Errorf("nearcache: encode: %w", err)
	}
	return slices.Clip(b), nil
}

// recoverTo turns a panic into a *PanicError.
func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = &PanicError{Value: r, Stack: debug.Stack()}
	}
}
