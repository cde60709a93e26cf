package invalidation

import (
	"testing"
	"time"
)

const (
	doubtBound  = int64(time.Second)
	doubtWindow = 5 * doubtBound
)

func newTestDoubt() *Doubt {
	return NewDoubt(DoubtConfig{Bound: time.Second, Window: 5 * time.Second}, 0)
}

// R7: a member that starts is in doubt for a window.
func TestDoubtAtTheStart(t *testing.T) {
	d := newTestDoubt()
	for _, s := range []struct {
		now    int64
		capped bool
	}{{0, true}, {doubtWindow - 1, true}, {doubtWindow, false}} {
		d.Heard([]int64{s.now + doubtBound, 0}, 1, false, s.now)
		if got := d.Tenure().Capped; got != s.capped {
			t.Errorf("at %d: capped is %v, want %v", s.now, got, s.capped)
		}
	}
}

// R7: an owner that hears no majority any more holds what it has for a Bound, counted from the end of the last lease, however late that is noticed;
// what it loads is capped until a window after it heard a majority again.
func TestDoubtOfAFencedMember(t *testing.T) {
	d := newTestDoubt()
	now := 2 * doubtWindow
	lost := now + doubtBound/2
	if d.Heard([]int64{now + doubtBound, lost, 0, 0}, 2, false, now) {
		t.Fatal("in doubt although two of four are heard")
	}
	tn := d.Tenure()
	if tn.Fence != lost || tn.End != lost+doubtBound || tn.CappedAt(lost-1) || !tn.CappedAt(lost) {
		t.Fatalf("got %+v, want a fence at %d", tn, lost)
	}
	noticed := lost + doubtBound/10
	if !d.Heard([]int64{now + doubtBound, lost, 0, 0}, 2, false, noticed) {
		t.Fatal("not in doubt when the majority is lost")
	}
	tn = d.Tenure()
	if tn.Before != noticed || tn.BeforeEnd != lost+doubtBound || !tn.Capped || !tn.Fenced || tn.End != Never {
		t.Fatalf("got %+v, want what was loaded before %d to end at %d", tn, noticed, lost+doubtBound)
	}
	last := noticed + 3*doubtWindow
	for at := noticed; at <= last; at += doubtBound / 10 {
		if d.Heard([]int64{now + doubtBound, lost, 0, 0}, 2, false, at) {
			t.Error("a doubt that goes on voids what was granted again")
		}
	}
	back := last + doubtBound
	d.Heard([]int64{back + doubtBound, back + doubtBound, 0, 0}, 2, false, back)
	if tn = d.Tenure(); tn.Fenced || !tn.Capped || tn.Before != noticed {
		t.Errorf("got %+v, want no fence, a cap, and the old entries still ended", tn)
	}
	end := last + doubtWindow
	d.Heard([]int64{end + doubtBound, end + doubtBound, 0, 0}, 2, false, end)
	if d.Tenure().Capped {
		t.Error("capped a window after a majority was heard again")
	}
	if !d.Dropped(end+1) || !d.Tenure().Capped {
		t.Error("not in doubt when a member does not have this one in its ring")
	}
	if tn = d.Tenure(); tn.Ended != last || tn.Before != end+1 {
		t.Errorf("got %+v, want that what the first doubt ended has ended", tn)
	}
}

// While a connected member goes by another ring what is loaded is capped, but what is held stays.
func TestDoubtOfUnequalRings(t *testing.T) {
	d := newTestDoubt()
	now := 2 * doubtWindow
	for _, differs := range []bool{false, true, false} {
		if d.Heard([]int64{now + doubtBound}, 1, differs, now) {
			t.Error("unequal rings end what is held")
		}
		if got := d.Tenure().Capped; got != differs {
			t.Errorf("rings differ: %v; capped: %v", differs, got)
		}
		now += doubtBound / 10
	}
}

// R18: who trusts is fenced, and says so, but keeps what it has.
func TestDoubtOfATrustingMember(t *testing.T) {
	d := NewDoubt(DoubtConfig{Bound: time.Second, Window: 5 * time.Second, Trusting: true}, 0)
	entered := d.Heard(nil, 2, true, doubtBound)
	if tn := d.Tenure(); entered || d.Dropped(doubtBound) || tn.Capped || tn.End != Never || tn.Before != 0 || !tn.Fenced {
		t.Errorf("got %+v, want nothing but Fenced", tn)
	}
}

func TestMajority(t *testing.T) {
	for _, c := range []struct {
		electorate int
		owns       bool
		want       int
	}{{1, true, 0}, {2, true, 1}, {3, true, 1}, {4, true, 2}, {5, true, 2}, {1, false, 1}, {3, false, 2}} {
		if got := Majority(c.electorate, c.owns); got != c.want {
			t.Errorf("Majority(%d, %v): got %d, want %d", c.electorate, c.owns, got, c.want)
		}
	}
}

// R7: what a member granted before it came into doubt is void: its followers are told so before any renewal is answered.
func TestResetOfALog(t *testing.T) {
	l := NewLog(LogConfig{})
	s := l.Subscribe("a")
	l.Append(Event{Keyspace: "ks", Key: "k"})
	l.Reset()
	s.Renew(7)
	var b Batch
	if !s.Take(&b, 10) || !b.Reset || len(b.Events) != 0 || !b.Renewed || b.Nonce != 7 || b.Seq != 2 {
		t.Fatalf("got %+v, want a reset, then the renewal", b)
	}
	var f Follower
	f.Contact(1)
	f.Inv(1, 1)
	gen := f.State().Gen
	if a := f.Reset(1, 2); a.Kill != CauseReset || a.State.Gen == gen {
		t.Fatalf("got %+v, want all copies dead", a)
	}
	// Lost with the stream that it was to come on.
	gen = f.State().Gen
	l.Reset()
	s.Close()
	s = l.Subscribe("a")
	s.Renew(8)
	if !s.Take(&b, 10) || b.Reset || !b.Renewed {
		t.Fatalf("got %+v on a new stream, want the renewal only", b)
	}
	if a := f.Renewed(1, b.Seq, 0, time.Second); a.Kill != CauseHole || a.State.Gen == gen {
		t.Fatalf("got %+v after a lost reset, want all copies dead", a)
	}
}
