package peerstest

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// serveHealth runs a real grpc server with the health service until the test ends.
func serveHealth(t *testing.T, l net.Listener) *health.Server {
	t.Helper()
	service := health.NewServer()
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}))
	healthpb.RegisterHealthServer(server, service)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return service
}

// dialHealth returns a real grpc client on h, closed when the test ends.
func dialHealth(t *testing.T, h *Host, addr string) healthpb.HealthClient {
	t.Helper()
	client, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(h.Dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}),
	)
	if err != nil {
		t.Fatalf("NewClient: %v", err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the client: %v", err)
		}
	})
	return healthpb.NewHealthClient(client)
}

func TestGRPCRunsInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := NewNetwork()
		l, err := network.Host("127.0.0.2").Listen(":0")
		if err != nil {
			t.Fatal(err)
		}
		service := serveHealth(t, l)
		client := dialHealth(t, network.Host("127.0.0.1"), l.Addr().String())

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatalf("Check: %v", err)
		}
		_, err = client.Check(ctx, &healthpb.HealthCheckRequest{Service: "other"})
		if got, want := status.Code(err), codes.NotFound; got != want {
			t.Errorf("Check of an unknown service: got %v, want %v", got, want)
		}

		watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []healthpb.HealthCheckResponse_ServingStatus{
			healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
		} {
			if i > 0 {
				time.Sleep(20 * time.Minute) // many keepalives, in virtual time
				service.SetServingStatus("", want)
			}
			got, err := watch.Recv()
			if err != nil {
				t.Fatalf("Recv %d: %v", i, err)
			}
			if got.GetStatus() != want {
				t.Errorf("Recv %d: got %v, want %v", i, got.GetStatus(), want)
			}
		}
	})
}

// TestGRPCSurvivesFaults: the faults look to grpc as real ones do.
func TestGRPCSurvivesFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := NewNetwork()
		network.SetLatency(time.Millisecond)
		l, err := network.Host("b").Listen(":0")
		if err != nil {
			t.Fatal(err)
		}
		serveHealth(t, l)
		client := dialHealth(t, network.Host("a"), l.Addr().String())
		check := func(when string, timeout time.Duration, want codes.Code) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(want == codes.OK))
			if got := status.Code(err); got != want {
				t.Errorf("%s: got %v, want %v", when, err, want)
			}
		}
		check("at first", time.Second, codes.OK)
		network.Cut("a", "b")
		check("cut", time.Second, codes.DeadlineExceeded)
		network.Heal("a", "b")
		check("healed", time.Second, codes.OK)
		network.Reset("a", "b")
		synctest.Wait() // a call that began before grpc saw it would fail
		check("after a reset", 10*time.Second, codes.OK)
		if got := network.Dials("a", "b"); got != 2 {
			t.Errorf("Dials: got %d, want 2", got)
		}

		// Keepalive finds out, and the client comes back by itself.
		network.Isolate("b")
		watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("Recv from an isolated server: got %v, want %v", err, codes.Unavailable)
		}
		if took := time.Since(began); took > 21*time.Second {
			t.Errorf("keepalive took %v, want at most twice its time", took)
		}
		network.Rejoin("b")
		check("rejoined", 2*time.Minute, codes.OK)
		if got := network.Conns("a", "b"); got != 1 {
			t.Errorf("Conns: got %d, want 1", got)
		}
	})
}
