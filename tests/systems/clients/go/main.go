// A Go client: net.Dial with the runtime's own poller, no resolver.
//
//	go-client tcp|udp ADDRESS:PORT
//
// Prints one JSON line for each step, in the form of the C client.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

const wait = 5 * time.Second

// The names of errors that a dial or a reply can return; any other one is shown in Go's words.
var names = map[syscall.Errno]string{
	syscall.ECONNREFUSED: "ECONNREFUSED",
	syscall.ETIMEDOUT:    "ETIMEDOUT",
	syscall.EPERM:        "EPERM",
	syscall.ENETUNREACH:  "ENETUNREACH",
	syscall.EHOSTUNREACH: "EHOSTUNREACH",
	syscall.ECONNABORTED: "ECONNABORTED",
	syscall.ECONNRESET:   "ECONNRESET",
}

type answer struct {
	Call  string  `json:"call"`
	Errno *string `json:"errno"`
	To    string  `json:"to"`
	Peer  *string `json:"peer"`
	Local *string `json:"local"`
	From  *string `json:"from"`
	Reply *string `json:"reply"`
}

func errno(err error) *string {
	if err == nil {
		return nil
	}
	name := err.Error()
	var number syscall.Errno
	if errors.As(err, &number) && names[number] != "" {
		name = names[number]
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		name = "EAGAIN"
	}
	return &name
}

func text(address net.Addr) *string {
	shown := address.String()
	return &shown
}

func say(a answer) {
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(74)
	}
}

func converse(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	buffer := make([]byte, 256)
	count, err := c.Read(buffer)
	return strings.TrimSpace(string(buffer[:count])), err
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go-client tcp|udp ADDRESS:PORT")
		os.Exit(64)
	}
	to := os.Args[2]
	c, err := net.DialTimeout(os.Args[1], to, wait)
	if err != nil {
		say(answer{Call: "connect", Errno: errno(err), To: to})
		return
	}
	peer, local := text(c.RemoteAddr()), text(c.LocalAddr())
	say(answer{Call: "connect", To: to, Peer: peer, Local: local})
	reply, err := converse(c)
	a := answer{Call: "read", Errno: errno(err), To: to, Peer: peer, Local: local}
	if err == nil {
		a.From, a.Reply = peer, &reply
	}
	say(a)
}
