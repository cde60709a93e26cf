package peerstest

import (
	"io"
	"net"
	"syscall"
	"time"
)

// conn is one end of a connection: the reading side of one stream and the writing side of the other.
type conn struct {
	host          *Host
	dialled       bool   // this end dialled
	peer          string // name of the other host
	local, remote address
	in, out       *stream
}

// Read reads what has arrived; see net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // read returns io.EOF itself
		err = opError("read", c.local, c.remote, err)
	}
	return n, err
}

// Write copies p into the send buffer and blocks while that is full; see net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	if err != nil {
		err = opError("write", c.local, c.remote, err)
	}
	return n, err
}

// Close ends both directions. What was written before still arrives.
func (c *conn) Close() error {
	c.forget()
	if !c.end(net.ErrClosed, io.EOF) {
		return opError("close", c.local, c.remote, net.ErrClosed)
	}
	return nil
}

// abort breaks the connection at this end at once; the other end sees a reset when it can hear of it.
func (c *conn) abort() {
	c.forget()
	c.end(syscall.ECONNRESET, syscall.ECONNRESET)
}

// end closes both directions: this end gets err, the other one there. The other end's reads and writes fail at the same time: one that
// could not write but still waited to read would be a connection that a process keeps in use for nothing. False when it had ended before.
func (c *conn) end(err, there error) bool {
	return c.in.closeRead(err, c.out.closeWrite(err, there))
}

func (c *conn) forget() {
	n := c.host.network
	n.mu.Lock()
	delete(n.conns, c)
	n.mu.Unlock()
}

// LocalAddr returns this end's address.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the other end's address.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	c.out.setWriteDeadline(t)
	return nil
}

// SetReadDeadline bounds Read; the zero time means never.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	return nil
}

// SetWriteDeadline bounds Write; the zero time means never.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setWriteDeadline(t)
	return nil
}
