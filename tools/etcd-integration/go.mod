// etcd's own integration tests, with an etcd-proxy before every member. `cargo xtask test etcd-integration` fetches the
// module at the version below, checks it against go.sum, lays `overlay` over it and runs its tests.
module tools.internal/etcd-integration

go 1.26.0

require go.etcd.io/etcd/tests/v3 v3.7.3
