// Command writers runs clients of etcd that write without pause, and tells each write that failed.
//
//	writers --endpoints URL[,URL] --cacert FILE --cert FILE --key FILE [--clients 10] [--rate 20] [--prefix writers/]
//
// Each client is a clientv3 of its own, made as Go programs make one: clientv3's transport.TLSInfo reads the CA file
// once, when the client is made, and the client's certificate and key at each handshake. A write puts the next number
// under the client's own key if the last one is still the one before it, so that a lost write
// shows as well. No write is repeated by the program; what clientv3 itself repeats is its own affair, as in any program.
//
// Standard output has one JSON object a line:
//
//	{"event":"started","clients":10}                      every client has written once
//	{"event":"failed","client":3,"time":…,"error":…,"code":…,"tookMs":…}
//	{"event":"summary","writes":…,"failed":…,"lost":…,"foundDone":…,"slowestMs":…,"clients":[…]}
//
// The summary comes on SIGINT or SIGTERM, and the exit status tells whether everything was as it should be. A line "report"
// on standard input prints a summary at once; "connect" has every client close its connections and make new ones with the
// TLS configuration that it has, without reading the CA file anew.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/status"
)

type options struct {
	endpoints string
	cacert    string
	cert      string
	key       string
	clients   int
	rate      float64
	prefix    string
	timeout   time.Duration
}

// printer keeps lines whole.
type printer struct {
	mu  sync.Mutex
	enc *json.Encoder
}

type failure struct {
	Event  string    `json:"event"`
	Client int       `json:"client"`
	Time   time.Time `json:"time"`
	Error  string    `json:"error"`
	// Code is gRPC's, such as Unavailable; Unknown for an error of the client's own.
	Code   string `json:"code"`
	TookMs int64  `json:"tookMs"`
}

type summary struct {
	Event     string  `json:"event"`
	Writes    int     `json:"writes"`
	Failed    int     `json:"failed"`
	Lost      int     `json:"lost"`
	FoundDone int     `json:"foundDone"`
	SlowestMs int64   `json:"slowestMs"`
	Clients   []tally `json:"clients"`
}

// tally is what one client did.
type tally struct {
	Client int `json:"client"`
	Writes int `json:"writes"`
	Failed int `json:"failed"`
	// Lost counts writes that were acknowledged and found gone.
	Lost int `json:"lost"`
	// FoundDone counts failed writes that were found done after all: allowed, since a broken connection tells nothing.
	FoundDone int   `json:"foundDone"`
	SlowestMs int64 `json:"slowestMs"`
}

type writer struct {
	number int
	key    string
	tls    *tls.Config
	opts   options
	out    *printer

	mu     sync.Mutex
	client *clientv3.Client
	tally  tally
	// next is the number that the next write puts; last is what the key holds as far as is known.
	next, last int
	reconnect  bool
}

func main() {
	var o options
	flag.StringVar(&o.endpoints, "endpoints", "", "the etcd to write to")
	flag.StringVar(&o.cacert, "cacert", "", "the CA that vouches for it")
	flag.StringVar(&o.cert, "cert", "", "the clients' certificate")
	flag.StringVar(&o.key, "key", "", "its key")
	flag.IntVar(&o.clients, "clients", 10, "how many clients")
	flag.Float64Var(&o.rate, "rate", 20, "writes a second of each client")
	flag.StringVar(&o.prefix, "prefix", "writers/", "below which the clients' keys are")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long one write may take")
	flag.Parse()
	ok, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "writers:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(o options) (bool, error) {
	if o.endpoints == "" || o.clients < 1 || o.rate <= 0 {
		return false, errors.New("--endpoints is needed, and --clients and --rate above 0")
	}
	out := &printer{enc: json.NewEncoder(os.Stdout)}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	writers := make([]*writer, o.clients)
	for i := range writers {
		w, err := newWriter(i, o, out)
		if err != nil {
			return false, err
		}
		defer w.close()
		writers[i] = w
		// The first write is not counted: it shows that the client can work at all.
		if err := w.first(ctx); err != nil {
			return false, fmt.Errorf("client %d: %w", i, err)
		}
	}
	out.print(map[string]any{"event": "started", "clients": o.clients})

	var all sync.WaitGroup
	for _, w := range writers {
		all.Go(func() { w.write(ctx) })
	}
	go command(writers, out)
	all.Wait()
	s := summarize(writers)
	out.print(s)
	return s.Failed == 0 && s.Lost == 0, nil
}

func command(writers []*writer, out *printer) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch line := strings.TrimSpace(lines.Text()); line {
		case "report":
			out.print(summarize(writers))
		case "connect":
			for _, w := range writers {
				w.mu.Lock()
				w.reconnect = true
				w.mu.Unlock()
			}
		default:
			fmt.Fprintf(os.Stderr, "writers: no command is called %q; there are report and connect\n", line)
		}
	}
}

func summarize(writers []*writer) summary {
	s := summary{Event: "summary"}
	for _, w := range writers {
		w.mu.Lock()
		t := w.tally
		w.mu.Unlock()
		s.Writes += t.Writes
		s.Failed += t.Failed
		s.Lost += t.Lost
		s.FoundDone += t.FoundDone
		s.SlowestMs = max(s.SlowestMs, t.SlowestMs)
		s.Clients = append(s.Clients, t)
	}
	return s
}

func newWriter(number int, o options, out *printer) (*writer, error) {
	w := &writer{
		number: number, opts: o, out: out, tally: tally{Client: number},
		key: o.prefix + strconv.Itoa(number),
	}
	if o.cacert != "" || o.cert != "" {
		info := transport.TLSInfo{TrustedCAFile: o.cacert, CertFile: o.cert, KeyFile: o.key, Logger: zap.NewNop()}
		config, err := info.ClientConfig()
		if err != nil {
			return nil, err
		}
		w.tls = config
	}
	return w, w.connect()
}

func (w *writer) connect() error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(w.opts.endpoints, ","),
		TLS:       w.tls,
		// As Kubernetes' API servers set them.
		DialTimeout:          20 * time.Second,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return err
	}
	w.client = client
	return nil
}

func (w *writer) close() {
	// The program ends; a connection that does not close is no loss.
	_ = w.client.Close()
}

func (w *writer) first(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.opts.timeout)
	defer cancel()
	_, err := w.client.Put(ctx, w.key, "0")
	w.next = 1
	return err
}

// write writes until the context ends. Writes under way are finished, so that the end is no failure.
func (w *writer) write(ctx context.Context) {
	ticker := time.NewTicker(time.Duration(float64(time.Second) / w.opts.rate))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w.mu.Lock()
		again := w.reconnect
		w.reconnect = false
		w.mu.Unlock()
		if again {
			w.close()
			if err := w.connect(); err != nil {
				w.fail(time.Now(), err)
				return
			}
		}
		w.once()
	}
}

// once writes the next number where the last one is, and tells what is there instead.
func (w *writer) once() {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), w.opts.timeout)
	defer cancel()
	answer, err := w.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(w.key), "=", strconv.Itoa(w.last))).
		Then(clientv3.OpPut(w.key, strconv.Itoa(w.next))).
		Else(clientv3.OpGet(w.key)).
		Commit()
	if err != nil {
		w.fail(begin, err)
		// Whether it was done, the next one will see.
		w.next++
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally.SlowestMs = max(w.tally.SlowestMs, time.Since(begin).Milliseconds())
	if answer.Succeeded {
		w.tally.Writes++
		w.last, w.next = w.next, w.next+1
		return
	}
	found := -1
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
		if number, err := strconv.Atoi(string(kvs[0].Value)); err == nil {
			found = number
		}
	}
	if found > w.last && found < w.next {
		// A write that seemed to have failed was done.
		w.tally.FoundDone++
	} else {
		w.tally.Lost++
		w.out.print(map[string]any{
			"event": "lost", "client": w.number, "time": time.Now(), "expected": w.last, "found": found,
		})
	}
	w.last = found
}

func (w *writer) fail(begin time.Time, err error) {
	w.mu.Lock()
	w.tally.Failed++
	w.mu.Unlock()
	w.out.print(failure{
		Event: "failed", Client: w.number, Time: time.Now(), Error: err.Error(),
		Code: status.Code(err).String(), TookMs: time.Since(begin).Milliseconds(),
	})
}

func (p *printer) print(value any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.enc.Encode(value); err != nil {
		fmt.Fprintln(os.Stderr, "writers: standard output:", err)
		os.Exit(2)
	}
}
