package etcd3

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestManualProgress asks for the progress of a watch by hand, as the watch cache does for consistent reads (KEP-2340).
// Kubernetes' own tests cannot tell a proxy that does not answer from a slow one: the cache gives up waiting after three
// seconds and reads from etcd.
func TestManualProgress(t *testing.T) {
	ctx, store, client := testSetup(t)
	increase := increaseRVFunc(client.Client)
	ctx = clientv3.WithRequireLeader(ctx)
	// No WithProgressNotify: only what is asked for can be answered.
	watch := client.Watch(ctx, store.resourcePrefix, clientv3.WithPrefix(), clientv3.WithRev(increase(ctx, t)), clientv3.WithCreatedNotify())
	if response := <-watch; !response.Created {
		t.Fatalf("the watch was not created: %+v", response)
	}
	for round := range 10 {
		wanted := increase(ctx, t)
		deadline := time.After(2 * time.Second)
	asking:
		for {
			if err := client.RequestProgress(ctx); err != nil {
				t.Fatal(err)
			}
			select {
			case response := <-watch:
				if response.IsProgressNotify() && response.Header.Revision >= wanted {
					break asking
				}
			case <-time.After(100 * time.Millisecond):
			case <-deadline:
				t.Fatalf("round %d: no progress up to revision %d was told within two seconds", round, wanted)
			}
		}
	}
}
