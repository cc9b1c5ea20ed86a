// The conformance guest in Go: does what the attribute `do` says.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"unsafe"

	"hostler"
)

func main() {
	// The lines of a batch name their messages; no variable does.
	if os.Getenv("MESSAGE_ID") == "" {
		answerLines()
		return
	}
	hostler.Run(handle)
}

// answerLines does with each message of a batch what its body says.
func answerLines() {
	type answer struct {
		ID      string `json:"id"`
		Outcome string `json:"outcome"`
		Reason  string `json:"reason,omitempty"`
	}
	messages, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var message struct{ ID, Body string }
		if err := messages.Decode(&message); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		if message.Body == "never" {
			answers.Encode(answer{message.ID, "dead-letter", "as told"})
		} else {
			answers.Encode(answer{ID: message.ID, Outcome: "ack"})
		}
	}
}

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
