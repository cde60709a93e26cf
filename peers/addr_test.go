package peers

import (
	"strings"
	"testing"
)

// Cases transport-9, ring-2 and discovery-3.
func TestCanonicalAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.7:7946":                    "10.0.0.7:7946",
		" 10.0.0.7:07946\n":                "10.0.0.7:7946",
		"[::1]:1":                          "[::1]:1",
		"[0:0:0:0:0:0:0:1]:1":              "[::1]:1",
		"[2001:DB8::0:1]:1":                "[2001:db8::1]:1",
		"[::ffff:10.0.0.7]:1":              "10.0.0.7:1",
		"[fe80::1%eth0]:1":                 "[fe80::1%eth0]:1",
		"localhost:1":                      "127.0.0.1:1",
		"LocalHost.:1":                     "127.0.0.1:1",
		"Pod-0.Cache.SVC.cluster.local.:9": "pod-0.cache.svc.cluster.local:9",
		"under_score:65535":                "under_score:65535",
		"1pod:1":                           "1pod:1",
		"10.0.0.7.nip.io:1":                "10.0.0.7.nip.io:1",
	} {
		got, err := CanonicalAddr(addr)
		if err != nil || got != want {
			t.Errorf("CanonicalAddr(%q): got %q, %v, want %q", addr, got, err, want)
		}
		if again, err := CanonicalAddr(got); err != nil || again != got {
			t.Errorf("CanonicalAddr(%q), of its own result: got %q, %v", got, again, err)
		}
	}
	for _, addr := range []string{
		"", ":", ":7946", "host", "host:", "host:0", "host:65536", "host:-1", "host:http", "host: 1", "::1:7946", "::1", "[::1]",
		"0.0.0.0:1", "[::]:1", "[::ffff:0.0.0.0]:1", "224.0.0.1:1", "10.1:1", "10.0.0.256:1", "10.0.0.07:1", "0x7f.1:1", "a..b:1", ".a:1", "a b:1", "a/b:1",
		"http://a:1", "user@a:1", "grün:1", strings.Repeat("a", 64) + ":1", strings.Repeat("a.", 127) + "a:1", "a:1,b:1",
	} {
		if got, err := CanonicalAddr(addr); err == nil {
			t.Errorf("CanonicalAddr(%q): got %q, want an error", addr, got)
		} else if !strings.HasPrefix(err.Error(), "nearcache: peers: address ") {
			t.Errorf("CanonicalAddr(%q): error %q does not say where it comes from", addr, err)
		}
	}
}

func FuzzCanonicalAddr(f *testing.F) {
	for _, addr := range []string{"10.0.0.7:7946", "[::1]:1", "LocalHost.:1", "a..b:1", "[fe80::1%]:1"} {
		f.Add(addr)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		got, err := CanonicalAddr(addr)
		if err != nil {
			return
		}
		if again, err := CanonicalAddr(got); err != nil || again != got {
			t.Errorf("CanonicalAddr(%q) is %q, whose own is %q, %v", addr, got, again, err)
		}
	})
}
