//go:build !cluster_proxy

package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.etcd.io/etcd/tests/v3/harness"
)

// Every connection that a client of these tests makes to a member is led to an etcd-proxy process before that member.
// The addresses stay the members', so that tests which choose, change or compare endpoints mean what they say.
//
// Two services go to the members themselves, by a client of their own: Cluster, since tests wait for the members that
// they started, and Auth, by which they administer users and roles. Each member tells the harness of every call that
// came to it from something else than a proxy.

// ThroughProxy tells tests whether they face etcd's own grpc-proxy.
const ThroughProxy = false

var (
	mu sync.Mutex
	// proxies holds the proxy's address for each member's.
	proxies = map[string]*proxy{}
	// administrators holds the client that reaches members directly, for each client that does not.
	administrators = map[*clientv3.Client]*clientv3.Client{}
)

// proxy is one before a member, which serves as the member does: with its certificates and its limits.
type proxy struct {
	once    sync.Once
	member  *Member
	request harness.ProxyRequest
	address string
	err     error
}

// ToGRPC answers the services behind a client.
func ToGRPC(c *clientv3.Client) GRPCAPI {
	conn, admin := c.ActiveConnection(), c.ActiveConnection()
	mu.Lock()
	if a, ok := administrators[c]; ok {
		admin = a.ActiveConnection()
	}
	mu.Unlock()
	return GRPCAPI{
		pb.NewClusterClient(admin),
		pb.NewKVClient(conn),
		pb.NewLeaseClient(conn),
		pb.NewWatchClient(conn),
		pb.NewMaintenanceClient(conn),
		pb.NewAuthClient(admin),
		v3lockpb.NewLockClient(conn),
		v3electionpb.NewElectionClient(conn),
	}
}

// newMemberClient is newClientV3 for one member, whose certificates and limits the proxy before it takes over.
func newMemberClient(m *Member, cfg clientv3.Config) (*clientv3.Client, error) {
	if !harness.Absent() {
		if _, err := proxyFor(m.GRPCURL, m); err != nil {
			return nil, err
		}
	}
	return newClientV3(cfg)
}

func newClientV3(cfg clientv3.Config) (*clientv3.Client, error) {
	if harness.Absent() {
		return clientv3.New(cfg)
	}
	for _, endpoint := range cfg.Endpoints {
		if _, err := proxyFor(endpoint, nil); err != nil {
			return nil, err
		}
	}
	direct := cfg
	direct.DialOptions = append([]grpc.DialOption(nil), cfg.DialOptions...)
	cfg.DialOptions = append(append([]grpc.DialOption(nil), cfg.DialOptions...), grpc.WithContextDialer(dialProxy))
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, err
	}
	// What the tests' own client was told does not fail here: it is made in the same way.
	admin, err := clientv3.New(direct)
	if err != nil {
		c.Close()
		return nil, err
	}
	c.Cluster = clientv3.NewCluster(admin)
	c.Auth = clientv3.NewAuth(admin)
	mu.Lock()
	administrators[c] = admin
	mu.Unlock()
	go endWith(c, admin)
	return c, nil
}

// endWith closes a client's administrator once the client's connection is closed, by whatever means.
func endWith(c, admin *clientv3.Client) {
	conn := c.ActiveConnection()
	for state := conn.GetState(); state != connectivity.Shutdown; state = conn.GetState() {
		conn.WaitForStateChange(context.Background(), state)
	}
	mu.Lock()
	delete(administrators, c)
	mu.Unlock()
	admin.Close()
}

// place is what a member's endpoint and the address that gRPC makes of it have in common.
func place(endpoint string) string {
	for _, scheme := range []string{"https:", "http:", "unixs:", "unix:"} {
		if rest, ok := strings.CutPrefix(endpoint, scheme); ok {
			endpoint = strings.TrimPrefix(rest, "//")
			break
		}
	}
	return endpoint
}

// proxyFor answers the address of the proxy before a member. The first to ask is the member itself, when it starts. A
// member of another cluster at the same address, after the first has ended, gets a proxy of its own.
func proxyFor(endpoint string, m *Member) (string, error) {
	mu.Lock()
	p, ok := proxies[place(endpoint)]
	if !ok || (m != nil && p.member != m) {
		directory, err := os.Getwd()
		if err != nil {
			mu.Unlock()
			return "", err
		}
		p = &proxy{member: m, request: harness.ProxyRequest{Endpoint: endpoint, Directory: directory}}
		if m != nil {
			p.request.MaxRequestBytes, p.request.MaxTxnOps = m.MaxRequestBytes, m.MaxTxnOps
			p.request.TLS = serving(m.ClientTLSInfo)
		}
		proxies[place(endpoint)] = p
	}
	mu.Unlock()
	p.once.Do(func() { p.address, p.err = harness.Proxy(p.request) })
	if p.err != nil {
		return "", fmt.Errorf("no proxy before %s: %w", endpoint, p.err)
	}
	return p.address, nil
}

// serving is how a member serves, for the proxy to do likewise.
func serving(info *transport.TLSInfo) *harness.TLS {
	if info == nil {
		return nil
	}
	serving := &harness.TLS{
		Cert: info.CertFile, Key: info.KeyFile, TrustedCA: info.TrustedCAFile,
		ClientCert: info.CertFile, ClientKey: info.KeyFile,
		MinVersion: version(info.MinVersion), MaxVersion: version(info.MaxVersion),
	}
	for _, suite := range info.CipherSuites {
		serving.CipherSuites = append(serving.CipherSuites, tls.CipherSuiteName(suite))
	}
	if info.ClientCertFile != "" {
		serving.ClientCert, serving.ClientKey = info.ClientCertFile, info.ClientKeyFile
	}
	return serving
}

// version is a version of TLS as etcd's flags name it: TLS1.2.
func version(number uint16) string {
	if number == 0 {
		return ""
	}
	return strings.ReplaceAll(tls.VersionName(number), " ", "")
}

func dialProxy(ctx context.Context, member string) (net.Conn, error) {
	address, err := proxyFor(member, nil)
	if err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// memberOptions has a member tell the harness of each call that does not come from a proxy.
func memberOptions() []grpc.ServerOption {
	if harness.Absent() {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(watchman{})}
}

type watchman struct{}

func (watchman) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (watchman) HandleConn(context.Context, stats.ConnStats)                       {}
func (watchman) HandleRPC(context.Context, stats.RPCStats)                         {}

func (watchman) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		for _, agent := range md.Get("user-agent") {
			if strings.HasPrefix(agent, "etcd-proxy/") {
				return ctx
			}
		}
	}
	if err := harness.Saw(info.FullMethodName); err != nil {
		panic(err)
	}
	return ctx
}

// NewProxiedClient is a client for code without a test at hand.
func NewProxiedClient(cfg clientv3.Config) (*clientv3.Client, error) { return newClientV3(cfg) }
