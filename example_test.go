package nearcache_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"time"

	"github.com/nearcache/nearcache"
	"github.com/nearcache/nearcache/feed"
	"github.com/nearcache/nearcache/peers"
)

type product struct {
	Name  string
	Cents int
}

// table stands for the application's database.
type table map[string]product

func (t table) product(_ context.Context, id string) (product, error) {
	p, ok := t[id]
	if !ok {
		return product{}, fmt.Errorf("product %s: %w", id, nearcache.ErrNotFound)
	}
	return p, nil
}

func ExampleNew() {
	db := table{"8812": {"Lamp", 1990}}
	products, err := nearcache.New(nil, "product", nearcache.Config[product]{Load: db.product, TTL: 5 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer products.Close(context.Background())
	fmt.Println(products.Get(context.Background(), "8812"))
	// Output: {Lamp 1990} <nil>
}

// Two members of one cluster, here in one process.
func ExampleStart() {
	ctx := context.Background()
	db := table{"8812": {"Lamp", 1990}}
	members := peers.NewList()
	var caches []*nearcache.Cache[product]
	var list []peers.Member
	for _, id := range []string{"a", "b"} {
		node, err := nearcache.Start(ctx, nearcache.NodeConfig{ID: id, Listen: "127.0.0.1:0", Discovery: members, PeerTimeout: time.Second})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer node.Close(ctx)
		list = append(list, peers.Member{ID: node.ID(), Addr: node.Addr()})
		products, err := nearcache.New(node, "product", nearcache.Config[product]{Load: db.product})
		if err != nil {
			fmt.Println(err)
			return
		}
		caches = append(caches, products)
	}
	members.Set(list...)
	for _, c := range caches {
		fmt.Println(c.Get(ctx, "8812"))
	}
	// Output:
	// {Lamp 1990} <nil>
	// {Lamp 1990} <nil>
}

func ExampleCache_Get_notFound() {
	products, err := nearcache.New(nil, "product", nearcache.Config[product]{Load: table{}.product})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer products.Close(context.Background())
	_, err = products.Get(context.Background(), "8812")
	fmt.Println(errors.Is(err, nearcache.ErrNotFound))
	// Output: true
}

func ExampleCache_GetMany() {
	db := table{"1": {"Lamp", 1990}, "2": {"Chair", 4900}}
	products, err := nearcache.New(nil, "product", nearcache.Config[product]{Load: db.product})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer products.Close(context.Background())
	found, err := products.GetMany(context.Background(), []string{"1", "2", "3"})
	fmt.Println(slices.Sorted(maps.Keys(found)), err)
	// Output: [1 2] <nil>
}

func ExampleCache_Invalidate() {
	ctx := context.Background()
	db := table{"8812": {"Lamp", 1990}}
	products, err := nearcache.New(nil, "product", nearcache.Config[product]{Load: db.product})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer products.Close(ctx)
	fmt.Println(products.Get(ctx, "8812"))
	db["8812"] = product{"Lamp", 1490} // the database commit
	if err := products.Invalidate(ctx, "8812"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(products.Get(ctx, "8812"))
	// Output:
	// {Lamp 1990} <nil>
	// {Lamp 1490} <nil>
}

func ExampleCache_InvalidateTag() {
	ctx := context.Background()
	db := table{"1": {"Lamp", 1990}, "2": {"Lamp", 2490}, "3": {"Chair", 4900}}
	products, err := nearcache.New(nil, "product", nearcache.Config[product]{
		Load:   db.product,
		TagsOf: func(_ string, p product) []string { return []string{"name:" + p.Name} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer products.Close(ctx)
	keys := []string{"1", "2", "3"}
	fmt.Println(products.GetMany(ctx, keys))
	db["1"], db["2"], db["3"] = product{"Lamp", 1490}, product{"Lamp", 1890}, product{"Chair", 3900} // the database commit
	if err := products.InvalidateTag(ctx, "name:Lamp"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(products.GetMany(ctx, keys)) // nobody has invalidated the chair
	// Output:
	// map[1:{Lamp 1990} 2:{Lamp 2490} 3:{Chair 4900}] <nil>
	// map[1:{Lamp 1490} 2:{Lamp 1890} 3:{Chair 4900}] <nil>
}

func ExampleNode_Handler() {
	node, err := nearcache.Start(context.Background(), nearcache.NodeConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(context.Background())
	mux := http.NewServeMux()
	mux.Handle("/debug/nearcache/", http.StripPrefix("/debug/nearcache", node.Handler()))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/nearcache/stats.json", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 application/json
}

// Another program changes a price; the stream of changes tells the cache.
func ExampleNode_Follow() {
	ctx := context.Background()
	node, err := nearcache.Start(ctx, nearcache.NodeConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	changes := feed.NewMemory(0) // in production an outbox table, or a broker
	f, err := node.Follow(ctx, changes, nearcache.FeedConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	db := table{"8812": {"Lamp", 1990}}
	products, err := nearcache.New(node, "product", nearcache.Config[product]{Load: db.product})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(products.Get(ctx, "8812"))

	db["8812"] = product{"Lamp", 1790}
	changes.Append(feed.Change{Keyspace: "product", Key: "8812"})
	for f.Stats().Applied == 0 {
		runtime.Gosched()
	}
	fmt.Println(products.Get(ctx, "8812"))
	// Output:
	// {Lamp 1990} <nil>
	// {Lamp 1790} <nil>
}
