// Package testserver takes the place of Kubernetes' own package of this name: where that one runs an etcd inside the
// test, this one asks the harness for an etcd of a version of its choice with an etcd-proxy before it, and gives the
// test a client of the proxy. The tests themselves are Kubernetes', unchanged.
package testserver

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"k8s.io/apiserver/harness"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

// NewTestConfig answers a configuration of which RunEtcd heeds what tests of the storage layer set:
// WatchProgressNotifyInterval. (The benchmarks, which are not run, set a quota besides.)
func NewTestConfig(testing.TB) *embed.Config {
	return embed.NewConfig()
}

// RunEtcd answers a client of a fresh etcd, through a proxy. Both end with the test.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	request := harness.EtcdRequest{}
	if cfg != nil {
		if !cfg.ClientTLSInfo.Empty() {
			t.Fatal("this stand-in for an etcd serves no TLS")
		}
		request.ProgressNotifyMillis = cfg.WatchProgressNotifyInterval.Milliseconds()
	}
	address, err := harness.Etcd(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := harness.End(address); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.New(clientv3.Config{
		Endpoints:   []string{"http://" + address},
		DialTimeout: 10 * time.Second,
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("etcd-client"),
	})
	if err != nil {
		t.Fatal(err)
	}
	lists := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, lists)
	client.Kubernetes = lists
	return client
}
