package concurrency_test

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/integration"
)

// newClient takes clientv3.New's place in the examples, which would reach a member directly with that.
func newClient(cfg clientv3.Config) (*clientv3.Client, error) {
	return integration.NewProxiedClient(cfg)
}
