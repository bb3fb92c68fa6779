// Stands in for EC2's instance metadata service, version 2: an instance, known by its address, reads what lies in the
// folder of that name below the first argument.
package main

import (
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

const (
	token       = "token-of-the-session"
	tokenHeader = "X-Aws-Ec2-Metadata-Token"
	ttlHeader   = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: metadata FOLDER ADDRESS:PORT")
	}
	folder := os.Args[1]
	http.HandleFunc("PUT /latest/api/token", giveToken)
	http.HandleFunc("GET /latest/", func(answer http.ResponseWriter, request *http.Request) {
		read(folder, answer, request)
	})
	log.Fatal(http.ListenAndServe(os.Args[2], nil))
}

func giveToken(answer http.ResponseWriter, request *http.Request) {
	answer.Header().Set(ttlHeader, request.Header.Get(ttlHeader))
	write(answer, token)
}

// The path is clean: the server redirects any other.
func read(folder string, answer http.ResponseWriter, request *http.Request) {
	if request.Header.Get(tokenHeader) != token {
		answer.WriteHeader(http.StatusUnauthorized)
		return
	}
	instance, _, err := net.SplitHostPort(request.RemoteAddr)
	if err != nil {
		answer.WriteHeader(http.StatusBadRequest)
		return
	}
	text, err := entry(filepath.Join(folder, instance, request.URL.Path))
	if err != nil {
		log.Printf("%s: %s: %v", instance, request.URL.Path, err)
		answer.WriteHeader(http.StatusNotFound)
		return
	}
	write(answer, text)
}

// A file's text, or the names in a folder, where folders end with a slash.
func entry(path string) (string, error) {
	about, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !about.IsDir() {
		text, err := os.ReadFile(path)
		return string(text), err
	}
	entries, err := os.ReadDir(path)
	var names []string
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() {
			name += "/"
		}
		names = append(names, name)
	}
	return strings.Join(names, "\n"), err
}

func write(answer http.ResponseWriter, text string) {
	if _, err := answer.Write([]byte(text)); err != nil {
		log.Print(err)
	}
}
