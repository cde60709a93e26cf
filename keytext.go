package nearcache

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxShown is how much of a long key is shown.
const maxShown = 256

// textKey makes text of a key, which may be any bytes: a key of printable characters is itself, any other one is quoted as in Go. Of a long one
// the beginning is left, and a number that is the same on all members.
func textKey(key string) string {
	if len(key) > maxShown {
		sum := sha256.Sum256([]byte(key))
		return strconv.QuoteToASCII(key[:maxShown/2]) + "…#" + hex.EncodeToString(sum[:8])
	}
	if strings.HasPrefix(key, `"`) || !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.QuoteToASCII(key)
	}
	return key
}

// rawKey is what textKey made text of, as far as that has it.
func rawKey(text string) string {
	if key, err := strconv.Unquote(text); err == nil && strings.HasPrefix(text, `"`) {
		return key
	}
	return text
}

// showKey returns the key as r may see it.
func (n *Node) showKey(r *http.Request, key string) string {
	if n.mayRead(r) {
		return textKey(key)
	}
	mac := hmac.New(sha256.New, n.secret[:])
	mac.Write([]byte(key))
	prefix, _, _ := strings.Cut(key, ":")
	if prefix == key || len(prefix) > 16 || !utf8.ValidString(prefix) {
		prefix = ""
	}
	return prefix + "#" + hex.EncodeToString(mac.Sum(nil)[:4])
}

// mayRead tells whether r may see whole keys.
func (n *Node) mayRead(r *http.Request) bool {
	if show := n.cfg.ShowKeys; show != nil {
		return show(r)
	}
	return fromThisHost(r)
}

// fromThisHost tells whether the request came over loopback and was meant for loopback: the second half keeps a page in
// the operator's browser from reading it under a name that resolves here.
func fromThisHost(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !isLoopback(host) {
		return false
	}
	target := r.Host
	if h, _, err := net.SplitHostPort(target); err == nil {
		target = h
	}
	return isLoopback(strings.Trim(target, "[]"))
}

// isLoopback tells whether host is a loopback address or the name that always means one.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
