// {{name}} greets whom the message names.
package main

import (
	"encoding/json"
	"fmt"

	"example.com/{{name}}-handler/hostler"
)

func main() { hostler.Run(handle) }

// handle is called with one message. A nil error acks it, and what is returned beside is the reply; hostler.Retry,
// hostler.DeadLetter(reason) and any other error say what is to become of the message instead.
func handle(message hostler.Message) ([]byte, error) {
	var who struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(message.Body, &who); err != nil {
		return nil, hostler.DeadLetter(fmt.Sprintf("the body is not the JSON that was expected: %v", err))
	}
	if who.Name == "" {
		return nil, hostler.DeadLetter("the body has no name")
	}
	return []byte("Hello, " + who.Name + "!"), nil
}
