package ring

import "testing"

func TestTagsDecide(t *testing.T) {
	same := func(ks1, key1, ks2, key2 string) {
		t.Helper()
		if Hash(ks1, key1) != Hash(ks2, key2) {
			t.Errorf("%q in %q and %q in %q: want one place", key1, ks1, key2, ks2)
		}
	}
	different := func(ks1, key1, ks2, key2 string) {
		t.Helper()
		if Hash(ks1, key1) == Hash(ks2, key2) {
			t.Errorf("%q in %q and %q in %q: want different places", key1, ks1, key2, ks2)
		}
	}
	same("a", "{user1}:name", "a", "{user1}:orders")
	same("a", "{user1}", "b", "x{user1}y")                 // across keyspaces
	same("a", "x{1}{2}", "a", "y{1}{3}")                   // the first pair
	same("a", "x}{1}", "a", "{1}")                         // a } before the { is nothing
	same("a", "{{1}", "a", "x{{1}y")                       // the tag is "{1"
	different("a", "{{1}", "a", "{1}")                     //
	different("a", "{user1}", "a", "{user2}")              //
	different("a", "{}:1", "a", "{}:2")                    // an empty tag is none
	different("a", "{}{t}:1", "a", "{}{t}:2")              // and no later pair counts
	different("a", "{}:1", "b", "{}:1")                    //
	different("a", "{1", "a", "{2")                        // never closed
	different("a", "1}", "a", "2}")                        //
	different("a", "8812", "b", "8812")                    // keyspaces
	different("a", "b", "b", "a")                          //
	different("a", "a", "b", "b")                          // a key named like its keyspace
	different("a", "\x00", "a", "\x00\x00")                // keys are bytes
	different("a", "k\xff\xfe", "a", "k\xff")              //
	different("user", "s:1", "users", ":1")                // the border counts
	different("", "", "", "a")                             // nothing is refused here
	different("a", "{"+string(rune(0))+"}", "a", "{\x01}") // a tag of any bytes
}
