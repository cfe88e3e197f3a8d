// An HTTP server and twenty clients at once.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "asked for ", r.URL.Path)
	}))
	var answers [20]string
	var all sync.WaitGroup
	for i := range answers {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			answer, err := http.Get(fmt.Sprintf("http://%s/%d", listener.Addr(), i))
			if err != nil {
				panic(err)
			}
			body, _ := io.ReadAll(answer.Body)
			answers[i] = string(body)
		}(i)
	}
	all.Wait()
	for _, answer := range answers {
		fmt.Println(answer)
	}
	os.Exit(6)
}
