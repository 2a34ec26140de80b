// Package harness is how a test binary of another project speaks to what runs it, `cargo xtask test`: the tests ask for
// etcds and proxies, which the harness starts, watches over and ends, and tell what the harness is to count.
//
// A question and its answer are a line of JSON each, on a connection of their own. The other side is
// xtask/src/commands/test/harness.rs.
package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// patience is how long an answer may take: an etcd has to start for some, on a machine that does much else.
const patience = 90 * time.Second

// TLS names the files with which a proxy serves, and with which it connects to the member.
type TLS struct {
	Cert       string `json:"cert"`
	Key        string `json:"key"`
	ClientCert string `json:"clientCert"`
	ClientKey  string `json:"clientKey"`
	TrustedCA  string `json:"trustedCa"`
	// What the proxy may agree on with clients, by the names that etcd's flags take; nothing for the usual.
	MinVersion   string   `json:"minVersion,omitempty"`
	MaxVersion   string   `json:"maxVersion,omitempty"`
	CipherSuites []string `json:"cipherSuites,omitempty"`
}

// ProxyRequest asks for a proxy before one endpoint. A relative path of a unix socket is one below Directory.
type ProxyRequest struct {
	Endpoint  string `json:"endpoint"`
	Directory string `json:"directory"`
	TLS       *TLS   `json:"tls,omitempty"`
	// The member's own limits; 0 for the usual ones.
	MaxRequestBytes uint `json:"maxRequestBytes,omitempty"`
	MaxTxnOps       uint `json:"maxTxnOps,omitempty"`
}

// EtcdRequest asks for an etcd without any history, and a proxy before it.
type EtcdRequest struct {
	ProgressNotifyMillis int64 `json:"progressNotifyMillis,omitempty"`
}

type question struct {
	Proxy *ProxyRequest `json:"proxy,omitempty"`
	Etcd  *EtcdRequest  `json:"etcd,omitempty"`
	End   string        `json:"end,omitempty"`
	Saw   string        `json:"saw,omitempty"`
}

type answer struct {
	Address string `json:"address"`
	Error   string `json:"error"`
}

// Absent tells whether the tests are to run without any proxy, to see what they do then.
func Absent() bool { return os.Getenv("HARNESS_ADDRESS") == "none" }

// Proxy answers the address, HOST:PORT, of a new proxy.
func Proxy(request ProxyRequest) (string, error) { return ask(question{Proxy: &request}) }

// Etcd answers the address, HOST:PORT, of a new proxy before a new etcd.
func Etcd(request EtcdRequest) (string, error) { return ask(question{Etcd: &request}) }

// End ends what was asked for by Proxy or Etcd; what is not ended so ends with the test binary.
func End(address string) error {
	_, err := ask(question{End: address})
	return err
}

// Saw has the harness count a call of this method that reached a member past the proxies.
func Saw(method string) error {
	_, err := ask(question{Saw: method})
	return err
}

func ask(q question) (string, error) {
	harness := os.Getenv("HARNESS_ADDRESS")
	if harness == "" {
		return "", errors.New("HARNESS_ADDRESS is not set: run these tests by `cargo xtask test`")
	}
	conn, err := net.Dial("tcp", harness)
	if err != nil {
		return "", fmt.Errorf("the harness is gone: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return "", fmt.Errorf("asking the harness: %w", err)
	}
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return "", fmt.Errorf("the harness did not answer: %w", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return "", fmt.Errorf("the harness answered %q: %w", line, err)
	}
	if a.Error != "" {
		return "", errors.New("the harness: " + a.Error)
	}
	return a.Address, nil
}
