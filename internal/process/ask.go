package process

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// askTimeout bounds the question to a running process whether it is healthy.
const askTimeout = 4 * time.Second

// askHealth asks the /healthz of the process that runs with this environment, for container images that hold nothing else to
// ask it with. Only the address is read: what else is configured is not its business.
func askHealth(service string, spec Config, stdout, stderr io.Writer) int {
	addr := cmp.Or(os.Getenv(prefix+"_HTTP_ADDR"), spec.common().HTTPAddr, defaultHTTPAddr(service))
	if err := healthy(addr); err != nil {
		fmt.Fprintf(stderr, "the %s is not healthy: %v\n", service, err)
		return ExitFailed
	}
	fmt.Fprintf(stdout, "the %s is healthy\n", service)
	return ExitClean
}

func healthy(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("AX_HTTP_ADDR=%q: %w", addr, err)
	}
	if port == "0" {
		return fmt.Errorf("AX_HTTP_ADDR=%q takes any free port; give it one that can be asked", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() { // it listens on all addresses, this one too (Go makes [::] take IPv4)
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	// Not the default client: a proxy set for the container must not be asked, and nothing is to stay open.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", req.URL, res.Status)
	}
	return nil
}
