// {{name}} greets the guest that the message names.
package main

import (
	"encoding/json"
	"fmt"

	"example.com/{{name}}-handler/hostler"
)

func main() { hostler.Run(handle) }

// handle processes one message. With a nil error, the message is acked, and the bytes are the reply. The errors hostler.Retry and
// hostler.DeadLetter(reason) set the outcome. Any other error fails the attempt.
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
