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
