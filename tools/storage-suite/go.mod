// Kubernetes' tests of its storage layer, on an etcd-proxy. `cargo xtask test storage-suite` fetches the module at the
// version below, checks it against go.sum, lays `overlay` over it and runs its tests.
module tools.internal/storage-suite

go 1.26.0

require k8s.io/apiserver v0.37.2
