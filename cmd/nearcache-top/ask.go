package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nearcache/nearcache"
)

// snapshot is what a cluster told.
type snapshot struct {
	nearcache.ClusterStats
	at time.Time
}

// asker asks nodes for the statistics of their cluster.
type asker struct {
	client *http.Client
	addrs  []string
}

func newAsker(addrs []string) *asker {
	return &asker{client: &http.Client{Timeout: 3 * time.Second}, addrs: addrs}
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 20

// baseOf makes the address of a page of what was given.
func baseOf(addr string) (string, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("%q is no address of a statistics page", addr)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/debug/nearcache/"
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.String(), nil
}

// ask asks one node after the other until all members are known, or everybody was asked.
func (a *asker) ask(ctx context.Context) (snapshot, error) {
	s := snapshot{at: time.Now()}
	var errs []error
	for _, addr := range a.addrs {
		c, err := a.fetch(ctx, addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if s.Members == nil {
			s.ClusterStats = c
		} else {
			s.fillIn(c)
		}
		if len(s.Silent) == 0 {
			break
		}
	}
	if s.Members == nil {
		return s, errors.Join(errs...)
	}
	return s, nil
}

// fillIn takes over from c what members told that the first one could not reach.
func (s *snapshot) fillIn(c nearcache.ClusterStats) {
	for id, m := range c.Members {
		if _, ok := s.Members[id]; ok {
			continue
		}
		s.Members[id] = m
		delete(s.Silent, id)
	}
	s.Keyspaces = nearcache.SumKeyspaces(s.Members)
}

// fetch asks one node.
func (a *asker) fetch(ctx context.Context, addr string) (c nearcache.ClusterStats, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, addr+"stats.json?scope=cluster", nil)
	if err != nil {
		return c, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c, fmt.Errorf("%s: %s", addr, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&c); err != nil {
		return c, fmt.Errorf("%s: no statistics of a cluster: %w", addr, err)
	}
	return c, nil
}
