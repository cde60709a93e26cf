// Command hello is the smallest program with a cache: one process, no cluster, no socket.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/nearcache/nearcache"
)

func main() {
	ctx := context.Background()
	greetings, err := nearcache.New(nil, "greeting", nearcache.Config[string]{
		Load: func(_ context.Context, name string) (string, error) {
			fmt.Println("loading", name) // your database query
			return "Hello, " + name + "!", nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer greetings.Close(ctx)
	for range 3 {
		greeting, err := greetings.Get(ctx, "gopher")
		fmt.Println(greeting, err)
	}
}
