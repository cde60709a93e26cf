package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// origin is the shop's database: a bbolt file, served to the nodes over HTTP on loopback, since a bbolt file belongs to one process. An
// embedded database on an idle machine is far faster than a real one under load, so its capacity is an explicit, modelled one.
type origin struct {
	db     *bbolt.DB
	server *http.Server
	url    string
	served chan struct{} // closed when the server has ended

	mu     sync.Mutex // guards what follows
	clock  clock
	cost   *cost
	ledger *ledger
	byNode []uint64 // loads
}

// nodeHeader carries the number of the node that loads.
const nodeHeader = "X-Node"

var productsBucket = []byte("products") //nolint:gochecknoglobals // constant

// openOrigin creates the database in dir with every product in its first version, and serves it.
func openOrigin(dir string, ids []string, nodes int, c *cost, l *ledger) (*origin, error) {
	db, err := bbolt.Open(filepath.Join(dir, "catalog.db"), 0o600, &bbolt.Options{
		Timeout: time.Second,
		NoSync:  true, // the file does not outlive the program
	})
	if err != nil {
		return nil, fmt.Errorf("open the origin: %w", err)
	}
	o := &origin{db: db, served: make(chan struct{}), clock: newClock(time.Now()), cost: c, ledger: l, byNode: make([]uint64, nodes)}
	if err := o.seed(ids); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the origin: %w", err), db.Close())
	}
	listener, err := listenLoopback()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve the origin: %w", err), db.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /product/{id}", o.serveProduct)
	o.url = "http://" + listener.Addr().String()
	o.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(o.served)
		_ = o.server.Serve(listener) // ends with ErrServerClosed
	}()
	return o, nil
}

// seed stores every product in its first version.
func (o *origin) seed(ids []string) error {
	return o.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(productsBucket)
		if err != nil {
			return err
		}
		for _, id := range slices.Sorted(slices.Values(ids)) { // in the order of the tree: ten times faster
			if err := put(b, productAt(id, firstVersion)); err != nil {
				return err
			}
		}
		return nil
	})
}

// start sets the run's zero. Loads from before count as from the zero of the clock that the origin was opened with.
func (o *origin) start(c clock) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock = c
}

// reprice commits the next version of a product, with another price. record is called with it before anybody can read it.
func (o *origin) reprice(id string, record func(version uint64)) error {
	return o.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(productsBucket)
		p, err := get(b, id)
		if err != nil {
			return err
		}
		next := productAt(id, p.Version+1)
		record(next.Version)
		return put(b, next)
	})
}

// serveProduct answers one load: it reads the row first and then takes its time, so that a price that changes meanwhile leaves the loader
// with an old row. That is the race that a cache must not lose.
func (o *origin) serveProduct(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	var p product
	err := o.db.View(func(tx *bbolt.Tx) (err error) {
		p, err = get(tx.Bucket(productsBucket), id)
		return err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	node, err := strconv.Atoi(r.Header.Get(nodeHeader))
	if err != nil || node < 0 || node >= len(o.byNode) {
		node = -1 // a curious human: costs the origin as much, but explains nothing about the cache
	}
	select {
	case <-time.After(o.admit(id, node)):
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(p) // an error is the caller's going away
}

// admit counts a load of node and returns how long it takes from now.
func (o *origin) admit(id string, node int) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.now()
	if node >= 0 {
		o.ledger.load(id, now)
		o.byNode[node]++
	}
	return o.cost.load(now) - now
}

// locked runs f on the origin's books.
func (o *origin) locked(f func(*cost, *ledger)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o.cost, o.ledger)
}

// loadsOf returns how many loads each node has made.
func (o *origin) loadsOf() []uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.byNode)
}

// close ends the server, without waiting for loads under way, and closes the database.
func (o *origin) close() error {
	err := o.server.Close()
	<-o.served
	return errors.Join(err, o.db.Close())
}

func put(b *bbolt.Bucket, p product) error {
	v, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return b.Put([]byte(p.ID), v)
}

func get(b *bbolt.Bucket, id string) (p product, err error) {
	v := b.Get([]byte(id))
	if v == nil {
		return p, fmt.Errorf("no product %s", id)
	}
	err = json.Unmarshal(v, &p)
	return p, err
}

// errNoProduct is what a load of a product that does not exist returns.
var errNoProduct = errors.New("no such product")

// originClient loads products from the origin for one node.
type originClient struct {
	base string
	node string
	http *http.Client
}

// newOriginClient returns a client for at most conns loads at a time.
func newOriginClient(base string, node, conns int) *originClient {
	return &originClient{
		base: base,
		node: strconv.Itoa(node),
		http: &http.Client{Transport: &http.Transport{MaxIdleConns: conns, MaxIdleConnsPerHost: conns}}, // no proxy
	}
}

// product loads one product: the shop's query to its database.
func (c *originClient) product(ctx context.Context, id string) (p product, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/product/"+url.PathEscape(id), nil)
	if err != nil {
		return p, err
	}
	req.Header.Set(nodeHeader, c.node)
	resp, err := c.http.Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return p, err
	case resp.StatusCode == http.StatusNotFound:
		return p, errNoProduct
	case resp.StatusCode != http.StatusOK:
		return p, fmt.Errorf("origin: %s", resp.Status)
	}
	err = json.Unmarshal(body, &p)
	return p, err
}

func (c *originClient) close() { c.http.CloseIdleConnections() }
