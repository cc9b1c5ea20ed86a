// The conformance guest in Go: does what the attribute `do` says.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"hostler"
)

func main() { hostler.Run(handle) }

func handle(message hostler.Message) ([]byte, error) {
	switch what := message.Attributes["do"]; what {
	case "ack":
		return nil, nil
	case "reply":
		return message.Body, nil
	case "retry":
		return nil, fmt.Errorf("%s: %w", message.Body, hostler.Retry)
	case "dead-letter":
		return nil, hostler.DeadLetter(string(message.Body))
	case "error":
		return nil, errors.New(string(message.Body))
	case "trap":
		return []byte{*nowhere()}, nil
	case "loop":
		for {
		}
	case "length":
		return []byte(strconv.Itoa(len(message.Body))), nil
	case "attributes":
		return json.Marshal(message.Attributes)
	case "context":
		return json.Marshal(map[string]int{"attempt": message.Attempt})
	case "hooks":
		fmt.Fprintln(os.Stderr, "handle")
		return nil, nil
	default:
		return nil, hostler.DeadLetter(fmt.Sprintf("this guest cannot do `%s`", what))
	}
}

// nowhere reads past the end of memory. Nothing that Go calls safe traps: a panic is an exit code.
func nowhere() *byte {
	address := uintptr(0xffff_fff0)
	return *(**byte)(unsafe.Pointer(&address))
}
